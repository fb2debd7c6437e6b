"""What a run says at its end, and what is left of it when it is made slim."""

import json
import shlex
import shutil

import pytest

from app_fedsm.cli.main import main
from app_fedsm.runs import hints
from app_fedsm.runs.run_folder import RUN, find_super_model
from app_fedsm.runs.slim import spare, total_size
from fedsm.core.errors import UserError
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import SITES, small_settings

LEFT = "site-9"  # has no images here any more


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_root):
    """A finished run in a folder whose name needs quotes, as `fedsm run` leaves it."""
    made = finished_run(tmp_path_factory.mktemp("made"), data_root, rounds=2)
    run = shutil.copytree(made, tmp_path_factory.mktemp("runs") / "my run")
    note = {"data": str(data_root), "settings": small_settings(rounds=2).to_dict(), "threads": 3, "cache": None}
    (run / RUN).write_text(json.dumps(note))
    state = run / "site_state" / LEFT
    (state / "seed_0").mkdir(parents=True)
    (state / "seed_0" / "splits.json").write_text("{}")
    (state / "abc").mkdir()
    (state / "abc" / "round_000002.safetensors").write_bytes(b"x" * 100_000)
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "my run")


def test_nobody_is_told_to_go_on_from_nothing(run, tmp_path):
    assert hints.go_on(run).splitlines() == [
        f"last checkpoint: {run / 'checkpoints' / 'round_000002.json'}", f"go on with: fedsm resume '{run}'"
    ]  # fmt: skip
    assert hints.go_on(tmp_path) == "no checkpoint was written yet; start again with the same command and --force"


def test_a_job_is_resumed_where_a_round_was_closed(tmp_path):
    assert "fedsm resume" not in hints.go_on_remotely(tmp_path)
    (tmp_path / "progress.jsonl").write_text('{"event": "round", "round": 1}\n')
    assert hints.go_on_remotely(tmp_path) == f"go on with: fedsm resume {tmp_path}"


def test_the_next_commands_can_be_pasted(run, data_root, tmp_path, monkeypatch, capsys):
    """They are cut into words as a shell does, and two of them are run."""
    monkeypatch.chdir(tmp_path)
    told = hints.in_words(run, json.loads((run / "results.json").read_text()))
    assert "size on disk: " in told and f"fedsm clean '{run}' drops the " in told
    report, evaluate, predict = [shlex.split(line)[1:] for line in told.partition("next:\n")[2].splitlines()]
    assert report == ["report", str(run)]
    assert main(evaluate) == 0 and (run / "evaluation.json").is_file()
    assert main(predict) == 0 and (run / "predictions" / "predictions.csv").is_file()
    assert f"images of patients are in: {run / 'predictions' / 'overlays'}" in capsys.readouterr().out


def test_the_next_commands_of_a_federation_go_to_its_sites(run):
    (run / RUN).write_text(json.dumps({"job_id": "1", "kit": "/my kits/lead"}))
    told = hints.in_words(run, json.loads((run / "results.json").read_text()))
    assert f"fedsm evaluate '{run}' --env prod --kit '/my kits/lead' --sites {' '.join(SITES)} -o '{run}'" in told


def test_a_run_stands_for_its_super_model(run, tmp_path):
    assert find_super_model(run) == find_super_model(run / "super_model") == run / "super_model"
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / RUN).write_text("{}")
    with pytest.raises(UserError, match="holds no super model yet: the run has not finished"):
        find_super_model(tmp_path / "young")


@pytest.mark.parametrize("command", [["resume"], ["run", "--resume", "--rounds", "2", "--out"]])
def test_a_finished_run_says_so(run, capsys, command):
    before = sorted(run.rglob("*"))
    assert main([*command, str(run)]) == 0
    told = capsys.readouterr().out
    assert "has finished its 2 rounds" in told and f"more rounds with: fedsm resume '{run}' --rounds N" in told
    assert sorted(run.rglob("*")) == before, "nothing was started"


@pytest.mark.parametrize("more", [["--rounds", "1"], ["--from-round", "2", "--rounds", "1"]])
def test_fewer_rounds_than_are_done_change_nothing(run, capsys, more):
    """Once the run's results were moved aside and run.json was written anew, and then the server refused."""
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert main(["resume", str(run), *more]) == 2
    err = capsys.readouterr().err
    assert "more than --rounds 1; give --rounds 2 or more" in err and err.count("\n") == 1
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_finished_job_of_a_federation_says_so(run, capsys):
    job = {"job_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12, "kit": "kit", "settings": {}, "sites": SITES}
    (run / RUN).write_text(json.dumps(job | {"byoc": False, "resources": {}, "earlier": []}))
    assert main(["resume", str(run)]) == 0 and "has finished its 2 rounds" in capsys.readouterr().out
    assert main(["resume", str(run), "--rounds", "3"]) == 2, "it asks the server, which is not there"


def test_clean_drops_what_only_a_resume_needs(run, data_root, tmp_path, capsys):
    before, least = total_size([run]), total_size(spare(run))
    assert main(["clean", str(run)]) == 0
    freed = total_size([run])
    assert "dropped what only a resume needs: " in capsys.readouterr().out
    assert least >= 100_000 and freed < before - least + 10_000
    assert not (run / "checkpoints").exists() and not spare(run)
    assert (run / "site_state" / LEFT / "seed_0" / "splits.json").is_file(), "evaluate needs the split"
    images = str(data_root / SITES[0] / "images")
    assert main(["predict", str(run), images, "-o", str(tmp_path / "p"), "--no-overlays"]) == 0
    assert "images of patients" not in capsys.readouterr().out
    assert main(["status", str(run)]) == 0
    for command in (["resume", str(run)], ["resume", str(run), "--rounds", "9"]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert "its checkpoints were dropped by --slim or `fedsm clean`" in err and err.count("\n") == 1
    assert main(["clean", str(run)]) == 0 and "0.0 MB" in capsys.readouterr().out, "again: nothing is left to drop"


def test_clean_refuses_what_has_not_finished(run, tmp_path, capsys):
    (run / "results.json").unlink()
    assert main(["clean", str(run)]) == 2
    assert "what is in it is needed to go on" in capsys.readouterr().err and (run / "checkpoints").is_dir()
    assert main(["clean", str(tmp_path / "none")]) == 2
    assert "holds no run" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_clean_follows_no_link(run, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "round_000001.safetensors").write_text("another's")
    (run / "site_state" / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert main(["clean", str(run)]) == 2 and "is a link" in capsys.readouterr().err
    assert (tmp_path / "elsewhere" / "round_000001.safetensors").is_file() and (run / "checkpoints").is_dir()


def test_report_of_one_run_goes_into_its_folder(run, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), "--quick"]) == 0
    assert (run / "report.html").is_file() and not (tmp_path / "report.html").exists()
    assert "images of patients" not in capsys.readouterr().out
    assert main(["report", str(run), "--quick"]) == 2 and "is there already" in capsys.readouterr().err
