"""`--format json`: one document on stdout, text on stderr, the same exit codes; also when a command fails."""

import contextlib
import io
import json
import math
import os
import shutil
import statistics

import pytest

from app_fedsm.cli import output
from app_fedsm.cli.documents import DATA
from app_fedsm.cli.main import build_parser, main
from app_fedsm.cli.output import Output, Problem, Result
from app_fedsm.cli.run_documents import Means
from app_fedsm.cli.status import progress, summary
from app_fedsm.federation import remote
from app_fedsm.runs import simulate
from docs_tools.commands_reference import leaves
from tests.helpers.finished_run import finished_run
from tests.helpers.json_output import ask
from tests.helpers.small_jobs import SITES, SMALL, small_settings, write_site

JOB_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root):
    """A finished run in a folder whose name needs quotes."""
    made = finished_run(tmp_path_factory.mktemp("made"), data_root, rounds=2, blend=True)
    folder = shutil.copytree(made, tmp_path_factory.mktemp("runs") / "my run")
    note = {"data": str(data_root), "settings": small_settings(rounds=2).to_dict(), "threads": 3, "cache": None}
    (folder / "run.json").write_text(json.dumps(note))
    return folder


@pytest.fixture
def root(tmp_path):
    for i, site in enumerate(("alpha", "beta")):
        write_site(tmp_path / "data" / site, 4, i)
    return tmp_path / "data"


def start(root, tmp_path):
    return ["run", *SMALL, "--data", root, "--out", tmp_path / "out"]


def test_every_command_with_the_option_is_described():
    with_option = {
        name
        for name, parser in leaves(build_parser())
        if any("--format" in a.option_strings and "json" in a.choices for a in parser._actions)
    }
    assert with_option == set(DATA)


# What commands found


def test_data_check(root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer, err = ask(capsys, "data", "check", "data", "--task", "retinal")
    data = answer["data"]
    assert (data["level"], data["counts"]) == ("WARN", {"PASS": 0, "WARN": 2, "FAIL": 0}) and answer["exit_code"] == 0
    assert data["root"] == str(root)
    assert data["sheets"] == {s: str(tmp_path / "fedsm_check" / f"{s}.png") for s in ("alpha", "beta")}
    alpha = data["sites"][0]
    assert (alpha["site"], alpha["pairs"], alpha["patients"]) == ("alpha", 4, {"count": 4, "rule": "one per file"})
    assert alpha["summary"]["width"] == [40, 40] and set(alpha["summary"]["labels"]) == {"disc", "cup"}
    assert [(f["level"], f["kind"], f["noted"]) for f in alpha["findings"]] == [("WARN", "few", ["4"])]
    assert "2 sites: 2 WARN" in err and "contact sheets" in err, "people read the same as ever, on stderr"


def test_a_data_check_that_fails_is_an_answer_and_exit_code_1(root, capsys):
    for i in (0, 2):
        (root / "beta" / "masks" / f"case_{i:02d}.png").unlink()
    answer, _ = ask(capsys, "data", "check", root, "--task", "retinal", "--no-sheets")
    assert (answer["status"], answer["exit_code"]) == ("ok", 1)
    data = answer["data"]
    assert data["level"] == "FAIL" and data["counts"]["FAIL"] == 1 and data["sheets"] == {}
    worst = data["sites"][1]["findings"][0]
    assert (worst["level"], worst["kind"], worst["noted"]) == (
        "FAIL", "no mask", ["images/case_00.png", "images/case_02.png"],
    )  # fmt: skip
    assert worst["what"] == "image without mask (2)" and worst["remedy"].startswith("add a mask")


def test_status_of_a_finished_run(run, capsys):
    answer, err = ask(capsys, "status", run)
    data = answer["data"]
    assert (data["state"], data["round"], data["rounds"]) == ("finished", 2, 2) and data["run"] == str(run)
    assert data["sites"] == data["answered"] == SITES and data["missing"] == {}
    assert [(s["track"], s["measure"]) for s in data["validation"]] == [("global", "Dice"), ("personal", "Dice")]
    assert data["seconds_left"] is None and "round 2 of 2 done" in err


def test_status_of_a_run_with_troubles(tmp_path, capsys):
    events = [
        {"event": "started", "sites": ["a", "b", "c"], "rounds": 5, "round": 0, "scores": {"global": "Dice"}},
        {"event": "registered", "round": 0},
        {"event": "refused", "round": 1, "task": "fedsm_train", "site": "b", "reason": "NaN"},
        {"event": "refused", "round": 1, "task": "fedsm_train", "site": "b", "reason": "not finite"},
        {"event": "warned", "round": 1, "task": "fedsm_train", "site": "c", "reason": "norm"},
        {"event": "round", "round": 1, "seconds": 60, "answered": ["a", "c"], "missing": {"b": "refused"}, "score": {}},
        {"event": "round", "round": 2, "seconds": 90, "answered": ["a"], "missing": {"b": "x", "c": "y"}, "score": {}},
    ]

    def told() -> dict:
        (tmp_path / "run.json").write_text("{}")
        (tmp_path / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return ask(capsys, "status", tmp_path)[0]["data"]

    data = told()
    assert (data["state"], data["round"], data["answered"]) == ("training", 2, ["a"])
    assert data["missing"] == {"b": "x", "c": "y"} and data["seconds_left"] == 3 * 75
    assert data["refused"] == [{"site": "b", "times": 2, "last_reason": "not finite"}]
    assert data["warned"] == [{"site": "c", "times": 1, "last_reason": "norm"}]
    events[-1]["score"] = {"global": math.nan}
    assert told()["validation"] == [{"track": "global", "measure": "Dice", "value": None}]
    events.append({"event": "failed", "reason": "too few sites"})
    data = told()
    assert (data["state"], data["reason"], data["seconds_left"]) == ("failed", "too few sites", None)


def test_status_of_an_evaluation_and_before_the_first_round():
    events = [{"event": "evaluating", "sites": ["a", "b"]}, {"event": "scored", "site": "a"}]
    assert progress(events) | {"state": "evaluating", "sites": ["a", "b"], "answered": ["a"]} == progress(events)
    assert summary(events) == "evaluation: 1 of 2 sites scored"
    started = {"event": "started", "sites": ["a", "b"], "rounds": 5, "round": 0, "scores": {}}
    assert [progress(e)["state"] for e in ([], [started], [started, {"event": "registered", "round": 0}])] == [
        "starting", "starting", "training",
    ]  # fmt: skip
    failed = [started, {"event": "failed", "reason": "no data"}]
    assert summary(failed) == "round 0 of 5 done, 2 sites, failed: no data", "also before the first round"


def test_evaluate(run, data_root, tmp_path, capsys):
    answer, err = ask(capsys, "evaluate", run, data_root, "-o", tmp_path / "e")
    data = answer["data"]
    assert set(data["files"]) == {"json", "markdown", "csv", "card", "image_scores"}
    assert all(os.path.isfile(path) for path in data["files"].values())
    with open(data["files"]["json"]) as file:
        written = json.load(file)
    for row in written["reliability"]["bins"]:  # an empty one: absent there, null here
        row |= {key: None for key in ("confidence", "accuracy") if key not in row}
    assert data["evaluation"] == written | {"missing": {}}
    assert "all tables" in err
    answer, _ = ask(capsys, "evaluate", run, data_root, "-o", tmp_path / "v", "--part", "validation")
    assert set(answer["data"]["files"]) == {"json", "markdown", "csv", "image_scores"}


def test_a_finished_run_is_told_again(run, data_root, capsys):
    results = json.loads((run / "results.json").read_text())
    answer, err = ask(capsys, "resume", run)
    assert answer["command"] == "fedsm resume" and "has finished its 2 rounds" in err
    data = answer["data"]
    assert (data["state"], data["run"], data["job_id"]) == ("finished", str(run), None)
    assert (data["rounds"], data["rounds_done"], data["sites"]) == (2, 2, SITES)
    assert data["results"]["file"] == str(run / "results.json") and data["super_model"] == str(run / "super_model")
    rows = {row: results["test"][row] for row in ("global", "personal_own", "super_model", "blend")}
    assert list(data["results"]["test_dice"]) == list(rows)
    for row, values in rows.items():
        dice, told = values["per_site"], data["results"]["test_dice"][row]
        assert (told["client_avg"], told["all_images"]) == (values["client_avg"], values["global"])
        assert dice[told["worst_site"]] == told["worst"] == min(dice.values())
        assert told["spread_over_sites"] == pytest.approx(statistics.stdev(dice.values()))
    assert data["results"]["test_images"] == {site: n["test"] for site, n in results["images"].items()}
    assert data["results"]["selector_accuracy"]["client_avg"] == results["test"]["selector_accuracy"]["mean"]
    assert data["commands"]["report"] == f"fedsm report '{run}'" and set(data["commands"]) == {
        "report", "evaluate", "predict",
    }  # fmt: skip
    assert ask(capsys, "run", "--resume", "--out", run)[0] == answer | {"command": "fedsm run"}


# Runs that fail or are stopped


def test_a_run_that_fails(root, tmp_path, capsys, monkeypatch):
    def fail(*args):
        raise simulate.SimulationFailed("it ended")

    monkeypatch.setattr(simulate, "simulate", fail)
    answer, err = ask(capsys, *start(root, tmp_path))
    assert (answer["status"], answer["exit_code"]) == ("error", 1)
    remedy = "no checkpoint was written yet; start again with the same command and --force"
    assert answer["error"] | {"code": "JOB_FAILED", "message": "it ended", "remedy": remedy} == answer["error"]
    data = answer["data"]
    assert (data["state"], data["rounds_done"], data["checkpoint"], data["commands"]) == ("failed", 0, None, {})
    assert data["results"] is None and data["sites"] == ["alpha", "beta"]
    assert "fedsm: the run failed: it ended" in err and "WARN alpha" in err


def test_a_run_that_is_stopped_after_a_round(root, tmp_path, capsys, monkeypatch):
    def stop(settings, data, sites, out, *args):
        (out / "checkpoints").mkdir()
        (out / "checkpoints" / "round_000001.json").write_text("{}")
        (out / "progress.jsonl").write_text('{"event": "round", "round": 1}\n')
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "simulate", stop)
    answer, _ = ask(capsys, *start(root, tmp_path))
    assert (answer["exit_code"], answer["error"]["code"]) == (130, "INTERRUPTED")
    data, out = answer["data"], tmp_path / "out"
    assert (data["state"], data["rounds_done"]) == ("stopped", 1)
    assert data["checkpoint"] == str(out / "checkpoints" / "round_000001.json")
    assert (
        data["commands"] == {"resume": f"fedsm resume {out}"}
        and data["commands"]["resume"] in answer["error"]["remedy"]
    )


@pytest.fixture
def job(tmp_path):
    """The folder of a job that was submitted."""
    note = {"job_id": JOB_ID, "kit": "nowhere", "settings": small_settings(rounds=3).to_dict(), "byoc": False}
    (tmp_path / "run.json").write_text(json.dumps(note | {"sites": SITES, "resources": {}, "earlier": []}))
    return tmp_path


def test_a_job_that_fails_is_stopped_or_ends_well(job, run, capsys, monkeypatch):
    def end(by: BaseException):
        def finish(out):
            raise by

        monkeypatch.setattr(remote, "finish", finish)
        answer, _ = ask(capsys, "fetch", job)
        assert answer["command"] == "fedsm fetch" and answer["data"]["job_id"] == JOB_ID
        return answer

    answer = end(remote.JobFailed("no quorum"))
    assert (answer["exit_code"], answer["error"]["code"], answer["error"]["message"]) == (1, "JOB_FAILED", "no quorum")
    assert answer["data"]["commands"] == {} and "submit it again" in answer["error"]["remedy"]
    (job / "progress.jsonl").write_text('{"event": "round", "round": 2}\n')
    answer = end(remote.JobFailed("no quorum"))
    assert answer["data"]["commands"] == {"resume": f"fedsm resume {job}"} and answer["data"]["rounds_done"] == 2
    answer = end(KeyboardInterrupt())
    assert (answer["exit_code"], answer["data"]["state"]) == (130, "running")
    assert answer["data"]["commands"] == {"fetch": f"fedsm fetch {job}", "status": f"fedsm status {job}"}
    monkeypatch.setattr(remote, "finish", lambda out: json.loads((run / "results.json").read_text()))
    answer, _ = ask(capsys, "fetch", job)
    assert (answer["exit_code"], answer["data"]["state"], answer["data"]["job_id"]) == (0, "finished", JOB_ID)
    assert "--env prod --kit nowhere" in answer["data"]["commands"]["evaluate"]


def test_a_job_that_is_not_waited_for(tmp_path, capsys, monkeypatch):
    def submit(login, settings, out, *args, **more):
        (out / "run.json").write_text(json.dumps({"job_id": JOB_ID}))
        return JOB_ID

    monkeypatch.setattr(remote, "check_connected", lambda kit, sites: None)
    monkeypatch.setattr(remote, "submit", submit)
    words = ["submit", "--kit", "k", "--sites", *SITES, *SMALL, "--no-wait", "--out", tmp_path / "o"]
    data = ask(capsys, *words)[0]["data"]
    assert (data["state"], data["job_id"], data["sites"]) == ("submitted", JOB_ID, SITES)
    assert data["commands"]["fetch"] == f"fedsm fetch {tmp_path / 'o'}"


# Errors


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["status", "none"], "BAD_INPUT", {"message": "none holds no run (run.json cannot be read)"}),
        (["data", "check", "data", "--task", "t.yaml"], "BAD_INPUT", {"file": "t.yaml", "line": 2}),
        (["status"], "BAD_INPUT", {"remedy": "see `fedsm status --help`"}),
        (["evaluate", "none", "data", "-o", "data/alpha/images/case_00.png/o"], "BAD_INPUT", {}),
        (["data", "check"], "INVALID_ARGS", {"remedy": "see `fedsm data check --help`"}),
        (["run", "--ronds", "3"], "INVALID_ARGS", {"message": "there is no option --ronds; did you mean --rounds?"}),
        (["rum"], "INVALID_ARGS", {"message": "there is no command 'rum'; did you mean run?"}),
    ],
)
def test_bad_input_is_a_document_and_one_line(root, tmp_path, capsys, monkeypatch, words, code, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text("name: t\nlabel: {}\n")
    answer, err = ask(capsys, *words)
    assert (answer["status"], answer["exit_code"], answer["data"]) == ("error", 2, None)
    assert answer["error"] | error | {"code": code} == answer["error"]
    assert err.count("\n") == 1 and "error: " in err and (answer["error"]["message"] in err)


def test_bad_data_name_site_and_remedy(root, tmp_path, capsys):
    (root / "beta" / "masks" / "case_01.png").unlink()
    answer, err = ask(capsys, *start(root, tmp_path))
    assert answer["exit_code"] == 2 and answer["error"]["site"] == "beta"
    assert answer["error"]["message"] == "image without mask: images/case_01.png"
    assert answer["error"]["remedy"].startswith("add a mask of the same name")
    assert err.startswith("fedsm: error: site 'beta': image without mask: images/case_01.png; add a mask")


def test_ctrl_c_and_an_error_of_ours(tmp_path, capsys, monkeypatch):
    from app_fedsm.cli import status

    def stop(out):
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "of_run", stop)
    answer, err = ask(capsys, "status", tmp_path)
    assert (answer["exit_code"], answer["error"]["code"], err) == (130, "INTERRUPTED", "stopped\n")
    monkeypatch.setattr(status, "of_run", lambda out: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["status", str(tmp_path), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["code"] == "INTERNAL_ERROR" and "ZeroDivisionError" in answer["error"]["message"]


# The document itself


def written(result: Result) -> dict:
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        Output(True, "fedsm status").end(result)
    return json.loads(stdout.getvalue(), parse_constant=pytest.fail)


def test_numbers_are_finite_and_texts_are_text():
    """Also where nobody thought of it: NaN in the middle of the data, bytes of a file's name that are not text."""
    data = Means.model_construct(client_avg=math.nan, all_images=-math.inf)
    answer = written(Result(0, data, Problem("BAD_INPUT", "bad \udcff name\x1b[2J")))
    assert answer["data"] == {"client_avg": None, "all_images": None}
    assert answer["error"]["message"] == "bad ? name\x1b[2J"
    assert Means(client_avg=math.inf, all_images=0.5).plain() == {"client_avg": None, "all_images": 0.5}


def test_the_reader_may_go_away_and_the_disk_may_be_full(run, capsys, monkeypatch):
    class Broken(io.StringIO):
        def flush(self):
            raise error

    monkeypatch.setattr(output.sys, "stdout", Broken())
    error = OSError(28, "No space left on device")
    assert main(["status", str(run), "--format", "json"]) == 2
    assert "error: : No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(output.sys, "stderr", io.StringIO())  # it is closed
    error = BrokenPipeError(32, "Broken pipe")
    assert main(["status", str(run), "--format", "json"]) == 0
