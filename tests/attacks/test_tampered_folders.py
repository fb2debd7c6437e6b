"""A run or a super model that somebody else packed.

Found: links in a run's folder led our writing out of it (`fedsm forget` wrote a checkpoint into another folder,
`fedsm resume` emptied the file that `.lock` led to, took another run's files as its own, and appended to where
`flare.log` led). JSON that is nested deeply, and values of the wrong kind in results.json, progress.jsonl, checkpoints
and manifests, ended `report`, `status`, `forget`, `predict` and the exports in a traceback.
"""

import json
import shutil

import pytest

from app_fedsm.cli.main import main
from app_fedsm.runs.run_folder import lock_folder, prepare_folder
from fedsm.core.errors import UserError
from fedsm.flare.evaluation import EvaluationController
from fedsm.super_model.model import SuperModel
from tests.helpers.attack_jobs import LEAD, bytes_of, run_job
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import write_site
from tests.helpers.small_model import site_images, write_super_model

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("made"), data_root, rounds=1)


@pytest.fixture
def run(tmp_path, made):
    return shutil.copytree(made, tmp_path / "run")


def one_line(capsys, arguments, *words) -> None:
    assert main([str(a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedsm: error: ") and err.count("\n") == 1, err
    assert all(word in err for word in words), err


@pytest.mark.parametrize("name", ["checkpoints.new", "super_model.new", "checkpoints.earlier", "site_state"])
def test_forget_writes_no_further_than_the_run(run, tmp_path, capsys, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "round_000001.json").write_text('{"files": {}}')
    (run / name).symlink_to(outside)
    before = bytes_of(outside)
    one_line(capsys, ["forget", "site-1", run, "--yes"], "is a link", name)
    assert bytes_of(outside) == before


@pytest.mark.parametrize(
    "name", ["checkpoints", "workspace", "workspace/server/simulate_job", "flare.log", "site_state/site-1", "job"]
)
def test_resume_writes_no_further_than_the_run(run, tmp_path, name):
    outside = tmp_path / "outside"
    shutil.copytree(run, outside)
    place = run / name
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    before = bytes_of(outside)
    with pytest.raises(UserError, match="is a link"):
        prepare_folder(run, resume=True, force=False, from_round=0)
    assert bytes_of(outside) == before


def test_the_lock_is_no_link(run, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keys")
    (run / ".lock").symlink_to(precious)
    with pytest.raises(OSError), lock_folder(run, "run"):
        pass
    assert precious.read_text() == "keys"


WRONG_RESULTS = [
    {"test": {}}, {"test": []}, {"validation": {"history": [1]}}, {"seconds": {"total": 1, "round": []}},
    {"method": ["x"]}, {"gamma_sweep": "x"}, {"settings": {}},
]  # fmt: skip


@pytest.mark.parametrize("change", [*WRONG_RESULTS, None])
def test_report_of_changed_results(run, tmp_path, capsys, change):
    content = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(DEEP if change is None else json.dumps(content | change))
    one_line(capsys, ["report", run, "--quick", "-o", tmp_path / "r.html"], "results.json")
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("text", ["{}\n", "{x}\n", '{"event": "started"}\n{"event": "round"}\n', "[{}\n", DEEP + "}"])
def test_status_of_a_changed_progress(run, capsys, text):
    (run / "progress.jsonl").write_text(text)
    one_line(capsys, ["status", run], "progress.jsonl")


def test_status_of_a_changed_run(run, capsys):
    (run / "run.json").write_text(DEEP)
    one_line(capsys, ["status", run], "run.json")


@pytest.mark.parametrize("change", [{"record": None}, {"record": {"zzz": 1}}, {"record": {"images": []}}, None])
def test_forget_in_a_changed_checkpoint(run, capsys, change):
    path = sorted((run / "checkpoints").glob("round_*.json"))[-1]
    content = json.loads(path.read_text())
    if change and change["record"]:
        change = {"record": content["record"] | change["record"]}
    path.write_text(DEEP if change is None else json.dumps(content | change))
    one_line(capsys, ["forget", "site-1", run, "--yes"], "checkpoint")


def changed_model(folder, change) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(gamma="a"),
        lambda m: m.update(gamma=[1]),
        lambda m: m.update(blend_gamma={}),
        lambda m: m["settings"]["task"].update(unet={"channels": "abc"}),
        lambda m: m["settings"]["task"].update(unet={"channels": [8, 16, 32]}),
        lambda m: m["settings"]["task"]["unet"].update(norm={"a": 1}),
        lambda m: m["settings"]["task"].update(labels={"a": [2**40]}),
        lambda m: m["settings"]["task"].update(labels={f"l{i}": [1] for i in range(16)}),
        lambda m: m["settings"].update(size=4_000_000),
    ],
)
def test_a_changed_super_model_is_one_error(tmp_path, change):
    folder = write_super_model(tmp_path)
    images = site_images(SuperModel.load(folder).settings, 0, 1)
    changed_model(folder, change)
    with pytest.raises(UserError) as caught:
        SuperModel.load(folder, "cpu").predict_batch(images)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"scores": [1]}, {"scores": {"foreign": {"site-1": "\x1b[2J"}}}, {"selector": []}])
def test_onboard_with_a_changed_super_model(tmp_path, capsys, change):
    """Nothing is written, either."""
    folder, start = write_super_model(tmp_path), tmp_path / "start.safetensors"
    write_site(tmp_path / "new", 3, 7)
    shutil.rmtree(tmp_path / "new" / "masks")
    changed_model(folder, lambda m: m.update(change))
    one_line(capsys, ["onboard", folder, tmp_path / "new", "--start", start], "super model")
    assert not start.exists()


def test_an_evaluation_of_an_incomplete_super_model_says_so(tmp_path, data_root):
    write_super_model(tmp_path / "server" / "job-1" / "app_server" / "config")
    job = run_job(tmp_path, data_root, "job-1", LEAD, controller=EvaluationController())
    assert job.panic.startswith("the super model's manifest is damaged") and "labels" in job.panic


def test_a_deep_manifest(tmp_path):
    folder = write_super_model(tmp_path)
    (folder / "manifest.json").write_text(DEEP)
    with pytest.raises(UserError, match="nested too deeply"):
        SuperModel.load(folder)
