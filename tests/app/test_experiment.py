"""`fedsm experiment`: the grid, what is run again, the choice of a learning rate, the tables."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from app_fedsm.cli.main import main
from app_fedsm.experiments import experiment as module
from app_fedsm.experiments import grid_run
from app_fedsm.experiments.experiment import run_grid
from app_fedsm.experiments.grid import build_experiment
from app_fedsm.experiments.grid_run import SPEC, UNSEEN, complete, spec_of, state_of
from app_fedsm.runs import run_folder, simulate
from fedsm.core.errors import UserError
from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES
from tests.helpers.grid_tools import SITES, SMALL, build, make_grid, starter
from tests.helpers.processes import processes_of
from tests.helpers.small_jobs import write_site


def test_runs_at_once_share_the_processors(tmp_path, monkeypatch):
    """Two at once on any machine: half the processors each, unless the caller says otherwise."""
    run = make_grid(build("{}", out=tmp_path / "out"), tmp_path).experiment
    seen = []
    monkeypatch.setattr(module.subprocess, "Popen", lambda *_, env, **__: seen.append(env.get("OMP_NUM_THREADS")))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (one,) = run.runs(run.rows[0], None, 0, SITES)
    for parallel in (1, 2):
        module.start_process(one, {}, parallel)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    module.start_process(one, {}, 2)
    assert seen == [None, str(max(1, os.cpu_count() // 2)), "7"]


def test_what_is_finished_is_not_repeated_and_a_failure_does_not_stop_the_rest(tmp_path, capsys):
    content = "{runs: {A: {}, B: {rounds: 3}, C: {rounds: 4}}}"
    grid = make_grid(build(content, out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    assert run_grid(grid, starter(lambda run: None if run.source == "B" else (0.5, 0.5))) == 1
    assert "failed: site 'a' is gone" in capsys.readouterr().err
    text = (grid.out / "table.md").read_text()
    assert "runs/B/seed-0 failed: site 'a' is gone" in text and "0.5200" in text
    again, started = make_grid(build(content, out=tmp_path / "out"), tmp_path), []
    assert run_grid(again, starter(lambda run: (0.5, 0.5), started)) == 0
    assert started == [("B", None, 0)]
    assert "| 2/3 [00:00<?, ?run/s]" in capsys.readouterr().err, "what was there does not make the rest look short"


def test_the_bar_follows_what_runs_tell(tmp_path):
    """Also centralized training, which has no checkpoints; half a line of a killed run is passed over."""
    grid = build("{runs: {A: {method: fedavg}}}", out=tmp_path)
    run = grid.runs(grid.rows[0], None, 0, SITES)[0]
    assert module._rounds(run) == 0
    told = run.folder / "progress.jsonl"
    told.parent.mkdir(parents=True)
    told.write_text('{"event": "started", "round": 4}\n')
    assert module._rounds(run) == 4, "resumed"
    told.write_text('{"event": "round", "round": 7}\n{"event": "refused", "round": 8}\n{"event": "round", "rou')
    assert module._rounds(run) == 7


def test_state_of_a_run(tmp_path):
    grid = build("{runs: {A: {method: fedavg}}}", out=tmp_path)
    run = grid.runs(grid.rows[0], None, 0, SITES)[0]

    def spec(run=run, data="data", sites=SITES):
        return spec_of(run, tmp_path / data, sites, None, tmp_path / "cache")

    assert state_of(run.folder, spec()) == "start"
    run.folder.mkdir(parents=True)
    (run.folder / f"{SPEC}.partial").write_text("{")
    assert state_of(run.folder, spec()) == "start", "killed while it wrote the first file"
    (run.folder / "stranger").touch()
    with pytest.raises(UserError, match="holds something else"):
        state_of(run.folder, spec())
    (run.folder / SPEC).write_text(json.dumps(spec()))
    assert state_of(run.folder, spec()) == "start", "no checkpoint yet"
    (run.folder / "workspace/server/simulate_job/checkpoints").mkdir(parents=True)
    (run.folder / "workspace/server/simulate_job/checkpoints/round_000012.json").touch()
    assert run_folder.rounds_done(run.folder) == 12
    assert state_of(run.folder, spec()) == "resume"
    finished = {"settings": run.settings.to_dict(), "validation": {"super_model": None}}
    (run.folder / "results.json").write_text(json.dumps(finished))
    assert state_of(run.folder, spec()) == "resume", "the scores of single images are not there yet"
    (run.folder / IMAGE_SCORES).write_text("{}")
    assert state_of(run.folder, spec()) == "done"
    assert state_of(run.folder, spec() | {"threads": 1, "cache": "other"}) == "done"
    other = build("{base: {rounds: 9}, runs: {A: {method: fedavg}}}", out=tmp_path)
    with pytest.raises(UserError, match="another 'rounds'"):
        state_of(run.folder, spec(other.runs(other.rows[0], None, 0, SITES)[0]))
    with pytest.raises(UserError, match="other data"):
        state_of(run.folder, spec(data="elsewhere"))
    with pytest.raises(UserError, match="other sites"):
        state_of(run.folder, spec(sites=["a", "b", "c"]))
    (run.folder / SPEC).write_text("{")
    with pytest.raises(UserError, match="damaged"):
        state_of(run.folder, spec())


def test_two_calls_on_one_folder_do_not_mix(tmp_path):
    def hold(patience: float = 0):
        return run_folder.lock_folder(tmp_path, "run", patience)

    with hold(), pytest.raises(UserError, match="another run is at work in"), hold():
        pass
    holder = subprocess.Popen(
        [sys.executable, "-c", "from app_fedsm.runs.run_folder import lock_folder; from pathlib import Path\n"
         f"import time\nwith lock_folder(Path({str(tmp_path)!r}), 'run'): print('held', flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="is at work"), hold():
        pass
    holder.kill()
    with hold(patience=300):
        pass
    holder.wait()


def test_what_outlived_its_command_is_stopped_and_nothing_else(tmp_path):
    """Two stand-ins for simulators, one at work in the folder of a run that was killed."""
    sleepers = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "nvflare.cli", "-w", str(path)])
        for path in (tmp_path / "run" / "workspace", tmp_path / "other" / "workspace")
    ]
    try:
        with simulate.lock_run(tmp_path / "run"):
            assert [process.poll() is None for process in sleepers] == [False, True]
    finally:
        for process in sleepers:
            process.kill()
            process.wait()


def small_data(root: Path, sites: tuple[str, ...]) -> Path:
    for seed, site in enumerate(sites):
        write_site(root / site, 6, seed)
    return root


@pytest.mark.slow
def test_a_real_grid(tmp_path, capsys):
    """One simulator run and a centralized one; the second call runs nothing."""
    data = small_data(tmp_path / "data", ("alpha", "beta"))
    file = tmp_path / "tiny.yaml"
    runs = {"C": {"method": "centralized"}, "P": {"personal": "ditto"}, "G": {"from": "P", "show": "global"}}
    file.write_text(yaml.safe_dump({"base": SMALL, "runs": runs, "parallel": 2}, sort_keys=False))
    command = ["experiment", str(file), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("start") == 2 and not (tmp_path / "out").exists()
    assert main(command) == 0, capsys.readouterr().err
    text = capsys.readouterr().out
    assert "selector acc." in text and "client avg" in text
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").open()))
    assert [row["run"] for row in rows] == ["C", "P", "G"] and all(0 <= float(row["alpha"]) <= 1 for row in rows)
    assert json.loads((tmp_path / "out/runs/P/seed-0/results.json").read_text())["settings"]["tracks"]["personal"] == {
        "kind": "ditto", "prox": 0.1
    }  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "out" / "cache").iterdir()) == ["alpha", "beta"], "one for all runs"
    assert not list((tmp_path / "out" / "runs").rglob("cache"))
    compared = [row for row in csv.DictReader((tmp_path / "out" / "paired.csv").open()) if row["site"] == "all images"]
    assert [(row["first"], row["second"], row["images"]) for row in compared] == [("P", "C", "4"), ("P", "G", "4")]
    for row in compared:
        dice = {line["run"]: float(line["all images"]) for line in rows}
        assert float(row["mean"]) == pytest.approx(dice["P"] - dice[row["second"]], abs=1e-5)
    assert not processes_of(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")}
    assert main(command) == 0 and capsys.readouterr().out == text
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")} == before
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("done") == 2
    assert main([*command, "--rounds", "2"]) == 2 and "another 'rounds'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_run_without_a_site(tmp_path):
    """Trained on two of three sites, tested on the third; a lost test is made again without training."""
    data = small_data(tmp_path / "data", ("alpha", "beta", "gamma"))
    grid = build_experiment(
        "loo", {"base": SMALL, "leave_one_out": True, "runs": {"S": {}}}, {}, {"out": str(tmp_path)}
    )
    run = grid.runs(grid.rows[0], None, 0, ["alpha", "beta", "gamma"])[1]
    spec = spec_of(run, data, ["alpha", "beta", "gamma"], None, tmp_path / "cache")
    assert run.unseen == "beta" and spec["sites"] == ["alpha", "gamma"]
    run.folder.mkdir(parents=True)
    (run.folder / SPEC).write_text(json.dumps(spec))
    complete(run.folder, spec)
    assert state_of(run.folder, spec) == "done"
    first = json.loads((run.folder / UNSEEN).read_text())
    assert first["evaluation"]["images"] == 2 and set(first["evaluation"]["argmax"]) == {"alpha", "gamma"}
    assert set(first["evaluation"]["dice"]) == {"global", "personal.alpha", "personal.gamma"}
    scores = json.loads((run.folder / IMAGE_SCORES).read_text())["sites"]
    assert list(scores) == ["beta"] and set(scores["beta"]["dice"]) == {"super_model", "global"}
    (run.folder / UNSEEN).unlink()
    assert state_of(run.folder, spec) == "resume"
    stamp = (run.folder / "results.json").stat().st_mtime_ns
    complete(run.folder, spec)
    assert json.loads((run.folder / UNSEEN).read_text()) == first
    assert (run.folder / "results.json").stat().st_mtime_ns == stamp


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, "both"])
def test_a_stopped_grid_goes_on(tmp_path, how):
    """Ctrl-C stops all processes; after kill -9 the run's process notices. The second call resumes.

    both: grid and run are killed and the next one comes at once, while their simulator still works in the folder.
    """
    data = small_data(tmp_path / "data", ("alpha", "beta"))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({"base": SMALL | {"rounds": 12}, "runs": {"A": {}}}))
    command = ["experiment", str(file), "--data", str(data), "--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "app_fedsm.cli.main", *command], env=os.environ)
    folder = tmp_path / "out/runs/A/seed-0"
    while run_folder.rounds_done(folder) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    if how == "both":
        runs = [p for p in psutil.Process(process.pid).children() if "app_fedsm.experiments.grid_run" in p.cmdline()]
        for victim in (psutil.Process(process.pid), *runs):
            victim.kill()
        process.wait()
        assert runs and processes_of(folder), "the simulator is still there"
        with simulate.lock_run(folder):
            assert not processes_of(folder), "and is stopped before anything else is done in the folder"
    else:
        process.send_signal(how)
        assert process.wait(600) == (130 if how == signal.SIGINT else -how)
        deadline = time.monotonic() + 600
        while processes_of(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not processes_of(folder)
    assert (
        not (folder / "results.json").exists()
        and grid_run.state_of(folder, json.loads((folder / SPEC).read_text())) == "resume"
    )
    assert main(command) == 0
    assert not processes_of(folder)
    history = json.loads((folder / "results.json").read_text())["validation"]["history"]
    assert [row["round"] for row in history] == list(range(1, 13))
