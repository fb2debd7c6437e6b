"""The record of real runs: signed by the server at their end, and true after all that our commands do to a run."""

import json
import shutil

import pytest

from app_fedsm.cli.main import main
from fedsm.core.trust import Trust, trust_in
from fedsm.super_model.record import read_record
from fedsm.super_model.verify import verify
from tests.helpers.attack_jobs import LEAD, bytes_of
from tests.helpers.federation import Federation
from tests.helpers.finished_run import finished_run
from tests.helpers.signed_runs import write_federation
from tests.helpers.small_jobs import SITES, small_settings


@pytest.fixture(scope="module")
def made(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("made"), data_root, rounds=2)


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def record_of(run):
    return read_record(run / "super_model" / "record.json").record


def test_a_federations_run(tmp_path, data_root):
    """Signed by the key of the server's kit; its checkpoints are kept elsewhere, and are in what is downloaded."""
    certificates = write_federation(tmp_path / "certificates")
    folder = tmp_path / "work"
    shutil.copytree(certificates / "server" / "startup", folder / "server" / "startup")
    federation = Federation(folder, data_root, small_settings(rounds=1), SITES, job_id="job-1", submitter=LEAD).run()
    assert federation.panic is None
    verdict = verify(federation.run_folder, trust_in(certificates / "hospital"))
    assert (verdict.problems, verdict.removed, verdict.notes) == ([], [], [])
    record = record_of(federation.run_folder)
    assert (record.made_by, record.job_id, record.study) == ("server", "job-1", "default")
    assert record.submitter.name == "lead@a.org" and record.sites == SITES
    names = set(record.files)
    assert {f"super_model/personal.{site}.safetensors" for site in SITES} < names
    assert {"checkpoints/round_000001.json", "accepted.jsonl", "results.json"} < names
    assert not any("owner.json" in name or "progress" in name for name in names)


def test_in_the_simulator_the_owner_signs(made):
    verdict = verify(made, Trust())
    assert verdict.problems == [] and verdict.intact == len(verdict.record.record.files)
    record = verdict.record.record
    assert (record.made_by, record.job_id, record.submitter, record.study) == ("simulator", None, None, None)
    assert record.run_id == json.loads((made / "results.json").read_text())["run_id"]


def test_a_resumed_run_is_signed_again(tmp_path, made, data_root):
    again = Federation(
        tmp_path, data_root, small_settings(rounds=3), SITES, resume_from=str(made / "checkpoints")
    ).run()
    assert again.panic is None and verify(again.run_folder, Trust()).problems == []
    assert record_of(again.run_folder).run_id == record_of(made).run_id and record_of(again.run_folder).rounds == 3


def test_forgetting_signs_ones_own_run_again(run, tmp_path):
    """In place and in a copy; the site is named in the new record."""
    assert main(["forget", "site-2", str(run), "-o", str(tmp_path / "copy"), "--yes"]) == 0
    assert verify(run, Trust()).problems == [], "the original is as it was"
    assert verify(tmp_path / "copy", Trust()).problems == []
    assert main(["forget", "site-2", str(run), "--yes"]) == 0
    for folder in (run, tmp_path / "copy"):
        verdict = verify(folder, Trust())
        assert verdict.problems == [] and verdict.notes == []
        assert verdict.record.record.sites == ["site-1", "site-3"] and verdict.record.record.forgotten == ["site-2"]


def test_forgetting_signs_nothing_that_was_changed(run):
    """Else it would launder it. What is still as it was signed is counted, and the reader is told of the command."""
    (run / "accepted.jsonl").write_text("")
    before = bytes_of(run)["super_model/record.json"]
    assert main(["forget", "site-2", str(run), "--yes"]) == 0
    assert bytes_of(run)["super_model/record.json"] == before
    verdict = verify(run, Trust())
    found = dict(verdict.problems)
    assert "changed" in found["accepted.jsonl"] and found["super_model/personal.site-2.safetensors"] == "is missing"
    assert "super_model/global.safetensors" not in found, "it is the one that was signed"
    assert len(verdict.notes) == 1 and "site-2 was forgotten" in verdict.notes[0]


def test_forgetting_signs_no_run_of_another_account(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    before = bytes_of(run)["super_model/record.json"]
    assert main(["forget", "site-3", str(run), "--yes"]) == 0
    assert bytes_of(run)["super_model/record.json"] == before and verify(run, Trust()).problems


def test_a_machine_that_cannot_keep_a_key_signs_all_the_same(tmp_path, data_root, monkeypatch):
    """With a key of this run alone: nothing is lost, and what has changed since is still found."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    run = finished_run(tmp_path / "run", data_root, rounds=1, method="fedavg")
    assert verify(run, Trust()).problems == []
