"""Row 4: a run's id, and every other name that comes over the wire or out of a file, must never be a path."""

import json
import shutil
import uuid

import pytest
import torch

from fedsm.client.local_state import LocalState
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.names import check_run_id
from fedsm.core.task_names import REGISTER, SCORE
from fedsm.flare.evaluation import MODEL, EvaluationController
from fedsm.server.checkpoint import Checkpoints
from fedsm.super_model.artefact import load_super_model
from tests.helpers.attack_jobs import FOLDER, LEAD, bytes_of, forge, kept, run_job
from tests.helpers.federation import Federation
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_model import write_super_model
from tests.helpers.trainer_site import meta_of, place_of

BAD = ["../../outside", "/tmp/x", "..", ".", "", "0123456789a", "0123456789AB", "0123456789ab\n", "a" * 12 + "/..", 7]


def test_what_a_run_makes_is_a_run_id():
    for _ in range(100):
        check_run_id(uuid.uuid4().hex[:12], "here")


@pytest.mark.parametrize("run_id", BAD)
def test_a_site_keeps_its_state_where_it_belongs(tmp_path, run_id):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "round_000001.safetensors").write_text("another program's")
    before = bytes_of(tmp_path)
    with pytest.raises(UserError) as caught:
        local = LocalState(tmp_path / "state" / "site-1", run_id)
        for number in (7, 8, 9):
            local.save(number, {"global": {"w": torch.zeros(1)}})
    assert "run id" in caught.value.public and str(caught.value).count("\n") == 0
    assert bytes_of(tmp_path) == before


def test_a_link_in_the_state_folder_leads_nowhere(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "0123456789ab").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of"):
        LocalState(tmp_path / "state", "0123456789ab")


@pytest.mark.parametrize("task", [REGISTER, SCORE])
@pytest.mark.parametrize(
    "wrong", [{"run_id": "../x"}, {"run_id": None}, {"sites": ["../x"]}, {"sites": "site-1"}, {"sites": ["a", "a"]}]
)
def test_no_worker_is_built_for_a_task_with_a_path(tmp_path, data_root, task, wrong):
    place = place_of(tmp_path, data_root)
    with pytest.raises(UserError, match="the server's task"):
        build_worker(place, task, meta_of(small_settings(), 1) | wrong)


def test_a_server_that_sends_a_path_gets_an_error_and_nothing_is_written(tmp_path, data_root, monkeypatch):
    """The whole way: even a server whose own checks are gone reaches no folder of a hospital."""
    monkeypatch.setattr("fedsm.flare.controller.uuid.uuid4", lambda: type("id", (), {"hex": "../outside.."})())
    job = Federation(tmp_path, data_root, small_settings(rounds=1, round_retries=0), SITES).run()
    assert "refused: no run id" in job.panic
    assert not list(tmp_path.rglob("outside*")) and not list(tmp_path.rglob("fedsm_state/*/*.safetensors"))


@pytest.mark.parametrize("run_id", BAD)
def test_a_checkpoint_with_a_path_as_run_id_is_refused_by_the_server(checkpoint, tmp_path, data_root, run_id):
    server = shutil.copytree(checkpoint, tmp_path / "copy")
    forge(kept(server, "job-1") / FOLDER, run_id=run_id)
    more = {"settings": small_settings(rounds=2), "resume_from": "job:job-1"}
    assert "is no run id" in run_job(server, data_root, "job-2", LEAD, **more).panic
    assert kept(server, "job-1").is_dir()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, data_root):
    folder = tmp_path_factory.mktemp("checkpoint")
    assert run_job(folder, data_root, "job-1", LEAD).panic is None
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["files"].update({"../x": "x"}), "plain file name"),
        (lambda s: s["files"].update({"x": "../../x"}), "plain file name"),
        (lambda s: s["files"].update({"x": "/etc/passwd"}), "plain file name"),
        (lambda s: s["files"].update({"x": 3}), "plain file name"),
        (lambda s: s["best"].update({"x": {"file": "../x"}}), "plain file name"),
        (lambda s: s["best"].update({"../x": {"file": "x"}}), "plain file name"),
        (lambda s: s["record"].update({"sites": ["site-1", "../x"]}), "site's name"),
        (lambda s: s["record"].update({"forgotten": ["../x"]}), "site's name"),
        (lambda s: s["record"].update({"sites": "site-1"}), "list of sites"),
        (lambda s: s.update({"round": "../1"}), "is no number"),
        (lambda s: s.update({"files": []}), "incomplete"),
    ],
)
def test_every_name_of_a_checkpoint_is_checked_when_it_is_read(checkpoint, tmp_path, change, words):
    folder = shutil.copytree(kept(checkpoint, "job-1") / FOLDER, tmp_path / FOLDER)
    path = max(folder.glob("round_*.json"))
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    with pytest.raises(UserError, match=words):
        Checkpoints(folder).load()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update({"run_id": "../../outside"}), "run id"),
        (lambda m: m.update({"sites": ["../x", "site-2"]}), "site's name"),
        (lambda m: m.update({"forgotten": ["/x"]}), "site's name"),
        (lambda m: m["networks"].update({"../x": m["networks"]["global"]}), "name of a network"),
        (lambda m: m["networks"]["global"].update({"file": "../global.safetensors"}), "file name"),
        (lambda m: m["networks"]["global"].update({"file": ".."}), "file name"),
        (lambda m: m["settings"]["task"].update({"name": "../x"}), "plain name"),
        (lambda m: m["settings"].update({"method": "../x"}), "plain name"),
    ],
)
def test_every_name_of_a_super_model_is_checked_where_it_is_evaluated(tmp_path, data_root, change, words):
    """An evaluation job brings its super model along: the controller refuses it before any site is asked."""
    config = write_super_model(tmp_path / "server" / "job-1" / "app_server" / "config")
    assert config.name == MODEL
    manifest = json.loads((config / "manifest.json").read_text())
    change(manifest)
    (config / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=words):
        load_super_model(config)
    asked = []
    job = run_job(
        tmp_path, data_root, "job-1", LEAD, controller=EvaluationController(), fault=lambda *a: asked.append(a)
    )
    assert words in job.panic and asked == []


def test_a_network_that_is_a_link_is_not_read(tmp_path):
    model = write_super_model(tmp_path)
    (model / "global.safetensors").rename(tmp_path / "elsewhere")
    (model / "global.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of"):
        load_super_model(model)
