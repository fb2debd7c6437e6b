"""Rows 8 and 21: whatever the umask, nothing that a command writes can be read by another account of the machine.

Every command that makes files runs here with umask 0, and every folder that it makes is walked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from app_fedsm.cli.main import main
from app_fedsm.federation.poc import Poc
from app_fedsm.provisioning.provision import provision
from app_fedsm.runs.run_folder import prepare_folder
from tests.helpers.finished_run import finished_run
from tests.helpers.grid_tools import SMALL
from tests.helpers.open_files import open_to_others, open_umask
from tests.helpers.processes import free_port, kill_all
from tests.helpers.small_jobs import SITES
from tests.helpers.small_jobs import SMALL as SMALL_OPTIONS

PROJECT = Path(__file__).parents[2] / "poc_workspace" / "project_localhost.yml"
KIT = ("startup", "local")  # what was there before a site's process started


@pytest.fixture(autouse=True)
def _open_umask():
    with open_umask():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("synth") / "data"
    with open_umask():
        assert main(["data", "synth", str(root), "--sites", "2", "--images", "8", "--size", "32"]) == 0
    return root


@pytest.fixture(scope="module")
def run(data_root, tmp_path_factory) -> Path:
    """A finished run: the real controller and sites, in this process."""
    with open_umask():
        return finished_run(tmp_path_factory.mktemp("run"), data_root, rounds=1)


def test_data(data, tmp_path):
    sheets = tmp_path / "sheets"
    sheets.mkdir(mode=0o755)
    (sheets / "site-1.png").write_bytes(b"of an earlier version, open to all")
    assert main(["data", "check", str(data), "--task", "retinal", "--sheets", str(sheets)]) == 0
    assert open_to_others(data, *sheets.iterdir()) == [], "an older file does not hand its mode down"


def test_a_job_closes_what_it_writes_whoever_started_flare(run):
    """A server and sites whose processes were started with an open umask, not by a kit of ours."""
    products = [run / name for name in ("checkpoints", "super_model", "results.json", "progress.jsonl")]
    state = [path for site in SITES for path in (run.parents[1] / site).iterdir() if path.name not in KIT]
    assert state and open_to_others(*products, *state) == []


def test_resume_closes_what_an_earlier_version_left_open(run, tmp_path):
    again = shutil.copytree(run, tmp_path / "again")
    for path in again.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    prepare_folder(again, resume=True, force=False)
    assert open_to_others(*(again / name for name in ("checkpoints", "super_model", "results.json", "run.json"))) == []


@pytest.mark.slow
def test_run_and_resume(data, tmp_path):
    """`fedsm run` with real processes: FLARE's simulator, its server and two sites."""
    out = tmp_path / "out"
    assert main(["run", *SMALL_OPTIONS, "--data", str(data), "--rounds", "1", "--out", str(out)]) == 0
    assert (out / "super_model").is_dir() and (out / "site_state").is_dir() and list(out.rglob("splits.json"))
    assert open_to_others(out) == []
    assert main(["run", "--resume", "--out", str(out), "--rounds", "2"]) == 0
    assert open_to_others(out) == []


def test_predict_and_evaluate(run, data_root, tmp_path):
    model, out = str(run / "super_model"), tmp_path / "masks"
    assert main(["predict", model, str(data_root / "site-1" / "images"), "-o", str(out)]) == 0
    assert {p.name for p in out.iterdir()} == {"masks", "overlays", "predictions.csv"}
    scores = tmp_path / "scores"
    assert main(["evaluate", model, str(data_root), "-o", str(scores)]) == 0
    assert open_to_others(out, scores) == []


def test_report(run, tmp_path):
    file = tmp_path / "below" / "report.html"
    assert main(["report", str(run), "--quick", "-o", str(file)]) == 0
    assert open_to_others(tmp_path / "below") == []


def test_exports(run, tmp_path):
    pytest.importorskip("onnxruntime")
    model, out = str(run / "super_model"), tmp_path / "exports"
    assert main(["export", "onnx", model, "-o", str(out / "model.onnx")]) == 0
    assert main(["export", "bundle", model, "-o", str(out / "bundle")]) == 0
    assert main(["job", "export", "--task", "retinal", "--byoc", "--out", str(out / "jobs")]) == 0
    assert open_to_others(out) == []


def test_workspace_and_forget(run, data, tmp_path):
    assert main(["workspace", str(tmp_path / "ws"), "--data", str(data)]) == 0
    (run / "site_state" / "site-1").mkdir(parents=True)
    (run / "site_state" / "site-1" / "moments").write_text("as an earlier version left them")
    assert main(["forget", "site-2", str(run), "--out", str(tmp_path / "without"), "--yes"]) == 0
    assert (tmp_path / "without" / "site_state" / "site-1" / "moments").is_file()
    assert open_to_others(tmp_path / "ws", tmp_path / "without") == []


@pytest.mark.process
def test_experiment(data, tmp_path):
    grid = {"base": SMALL | {"size": 32}, "runs": {"Pool": {"method": "centralized"}}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    out = tmp_path / "experiment"
    assert main(["experiment", str(tmp_path / "grid.yaml"), "--data", str(data), "--out", str(out)]) == 0
    assert list(out.rglob("results.json")) and open_to_others(out) == []


@pytest.mark.process
def test_keys_of_a_consortium(tmp_path):
    """Row 8: the root key (state/cert.json) was 0644. Calling it again closes what was left open."""
    kits = tmp_path / "kits"
    assert main(["provision", str(PROJECT), "-o", str(kits)]) == 0
    root_key = next(kits.rglob("state/cert.json"))
    assert open_to_others(kits) == []
    for path in (root_key, root_key.parent, *kits.rglob("*.key")):
        path.chmod(0o755)
    assert main(["provision", str(PROJECT), "-o", str(kits)]) == 0
    assert len(list(root_key.parents[1].glob("prod_*"))) == 2 and open_to_others(kits) == []


@pytest.mark.process
def test_a_kit_starts_after_it_was_sent_and_flare_writes_for_its_owner_alone(tmp_path):
    """As archive and back: the scripts can be started, and set the umask before they do anything."""
    made = provision(PROJECT, tmp_path / "kits")
    for kit in (made.server, *made.sites.values(), *made.users.values()):
        sent = Path(shutil.make_archive(str(tmp_path / kit.name), "gztar", kit))
        subprocess.run(["tar", "xzf", sent], cwd=_folder(tmp_path / f"at {kit.name}"), check=True)
        scripts = list((tmp_path / f"at {kit.name}" / "startup").glob("*.sh"))
        assert scripts and all(os.access(script, os.X_OK) for script in scripts)
        for script in scripts:
            assert script.read_text().splitlines()[1].startswith("umask 077")
            assert subprocess.run(["bash", "-n", script]).returncode == 0
        assert open_to_others(*(tmp_path / f"at {kit.name}").iterdir()) == []


@pytest.mark.process
def test_poc_is_closed_and_closes_what_an_earlier_version_left_open(data, tmp_path):
    poc, asked = Poc(tmp_path / "poc"), (data, ["site-1", "site-2"], free_port(), None)
    poc.prepare(*asked)
    root_key = next(poc.flare.rglob("state/cert.json"))
    assert open_to_others(poc.flare) == []
    root_key.chmod(0o644)
    poc.prepare(*asked)
    assert open_to_others(poc.flare) == []


@pytest.mark.slow
def test_a_federation_of_real_processes(data, tmp_path):
    """`poc up`, a job, its download: kits, storage, jobs, logs, the sites' state and cache."""
    poc, out = tmp_path / "poc", tmp_path / "run"
    try:
        assert main(["poc", "up", "--dir", str(poc), "--data", str(data), "--port", str(free_port())]) == 0
        submit = ["poc", "submit", "--dir", str(poc), *SMALL_OPTIONS, "--rounds", "1", "--out", str(out)]
        assert main([*submit, "--no-wait"]) == 0 and main(["fetch", str(out)]) == 0
        assert open_to_others(poc, out) == []
        assert main(["poc", "down", "--dir", str(poc)]) == 0
    finally:
        kill_all(poc)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
