"""`fedsm experiment`: the grid, what is run again, the choice of a learning rate, the tables."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from app_fedsm import experiment as module
from app_fedsm import grid_run, run_folder
from app_fedsm.cli import main
from app_fedsm.config import _Loader, available
from app_fedsm.experiment import Grid, run_grid
from app_fedsm.grid import build_experiment, load_experiment
from app_fedsm.grid_run import SPEC, UNSEEN, complete, spec_of, state_of
from app_fedsm.grid_tables import choose, cost_columns, gammas_of, mean_std, table_lines, validation_score
from fedsm.errors import UserError
from tests.app.test_simulator import processes_of
from tests.conftest import write_site

SITES = ["a", "b"]
SMALL = {
    "task": "retinal", "size": 32, "batch_size": 4, "rounds": 1, "task.unet.channels": [4, 8, 16],
    "task.unet.residual_units": 1, "task.selector_net": {"head": "gap", "width": 0.0625},
}  # fmt: skip


def build(content: str, options: dict | None = None, out: Path = Path("out"), **given):
    content = yaml.load(content, _Loader)
    content["base"] = {"task": "retinal"} | content.get("base", {})
    return build_experiment("grid", content, options or {}, given | {"out": str(out)})


def names(experiment) -> list[str]:
    return [row.name for row in experiment.rows]


class Done:
    """A process that has ended."""

    def __init__(self, code: int):
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def results(dice: float, validation: float, run, sites=SITES) -> dict:
    """results.json of a run whose global model scores `dice` at the first site and 0.1 more at each next one."""
    per_site = {site: dice + 0.1 * i for i, site in enumerate(sites)}
    table = {"per_site": per_site, "client_avg": dice + 0.05, "global": dice + 0.06, "per_label": {"disc": dice}}
    better = {k: ({s: v + 0.02 for s, v in per_site.items()} if k == "per_site" else v) for k, v in table.items()}
    return {
        "settings": run.settings.to_dict(), "gamma": 0.5, "gamma_sweep": [{"gamma": 0.5, "validation": validation}],
        "images": {s: {"test": 2 + i, "validation": 1} for i, s in enumerate(sites)},
        "validation": {"best": {"global": {"score": validation - 0.1}}},
        "test": {
            "global": table, "super_model": better, "selector_accuracy": {"mean": 0.75},
            "candidates": {s: {"personal.a": 0.5 + 0.2 * i, "personal.b": 0.3} for i, s in enumerate(sites)},
        },
    }  # fmt: skip


def starter(scores, started: list | None = None):
    """Stands in for a run's process: `scores(run)` gives (dice, validation), or None for a run that fails."""

    def start(run, spec):
        if started is not None:
            started.append(run.key)
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / SPEC).write_text(json.dumps(spec))
        score = scores(run)
        if score is None:
            (run.folder / "experiment.log").write_text("first\nsite 'a' is gone\n")
            return Done(1)
        (run.folder / "results.json").write_text(json.dumps(results(*score, run)))
        return Done(0)

    return start


def make_grid(experiment, tmp_path) -> Grid:
    grid = Grid(experiment, tmp_path / "data", SITES)
    grid.check()
    return grid


def test_rows_are_runs_times_axes():
    grid = build("""
        base: {method: fedsm, rounds: 7}
        runs: {A: {personal: ditto}, B: {from: A, show: global}}
        axes: {selector: [statistics, fedavg], tracks.personal.prox: [1e-2, 1]}
    """)
    points = [f"selector={s}, tracks.personal.prox={p}" for s in ("statistics", "fedavg") for p in ("0.01", "1")]
    assert names(grid)[4:] == [f"B {p}" for p in points]
    assert [row.source for row in grid.rows] == [f"A {p}" for p in points] * 2
    run = grid.runs(grid.rows[3], None, 5, SITES)[0]
    assert run.settings.tracks["personal"] == {"kind": "ditto", "prox": 1}
    assert run.settings.tracks["selector"] == {"kind": "selector_fedavg"}
    assert (run.settings.rounds, run.settings.seed) == (7, 5)


def test_what_is_shown_is_the_best_that_a_method_has():
    grid = build("runs: {A: {method: fedsm}, B: {method: fedavg}, C: {method: local}, D: {method: centralized}}")
    assert [row.show for row in grid.rows] == ["super_model", "global", "personal_own", "global"]


def test_base_options_of_a_track_go_to_the_rows_that_have_it():
    """A row's own options have to fit."""
    grid = build(
        "runs: {A: {method: fedsm}, B: {method: fedavg}}", {"lam": 0.6, "tracks.selector.kind": "selector_fedavg"}
    )
    one, two = (grid.runs(row, None, 0, SITES)[0].settings for row in grid.rows)
    assert one.tracks["personal"] == {"kind": "softpull", "lam": 0.6}
    assert one.tracks["selector"] == {"kind": "selector_fedavg"}
    assert set(two.tracks) == {"global"}
    with pytest.raises(UserError, match="row 'B': method 'fedavg' has no personal track"):
        build("runs: {B: {method: fedavg, lam: 0.6}}")


def test_options_of_the_command_win_over_the_base_and_rows_over_both():
    content = {"base": {"task": "retinal", "rounds": 3}, "runs": {"A": {}, "B": {"rounds": 9}}}
    grid = build_experiment("x", content, {"rounds": 5}, {}, [("A", "lr=1e-4")])
    settings = [grid.runs(row, None, 0, SITES)[0].settings for row in grid.rows]
    assert [s.rounds for s in settings] == [5, 9]
    assert [s.lr for s in settings] == [1e-4, 1e-3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("runs: [", "no YAML"),
        ("runs: {A: {}, A: {}}", "'A' stands twice"),
        ("- a", "expected a mapping"),
        ("rnus: {}", "unknown key 'rnus'"),
        ("base: {rouns: 1}", "unknown setting 'rouns'"),
        ("base: {rounds: many}", "'rounds' must be int"),
        ("base: {task: 3}", "task must be a word"),
        ("base: {task: liver}", "unknown task 'liver'"),
        ("base: {task: retinal, seed: 1}", "use `seeds`"),
        ("base: {task: retinal, tracks: {}}", "'tracks' cannot be set here"),
        ("runs: {A: {method: magic}}", "row 'A': unknown method 'magic'"),
        ("runs: {A: {personal: magic}}", "row 'A': unknown personal kind 'magic'"),
        ("runs: {A: {from: B}}", "from: 'B' is no row"),
        ("runs: {A: {}, B: {from: A, lr: 1}}", "only `show` can be set, not 'lr'"),
        ("runs: {A: {show: all}}", "show must be one of"),
        ("runs: {A: {method: local, show: global}}", "needs a global track"),
        ("runs: {A: {show: blend}}", "needs `blend: true`"),
        ("{runs: {A: {method: local}}, leave_one_out: true}", "personal_own means nothing"),
        ("runs: {A b: {}, A_b: {}}", "would share a folder"),
        ("runs: {A: 1}", "mapping of options"),
        ("axes: {lam: 0.5}", "needs a list"),
        ("seeds: [0, 0]", "different whole numbers"),
        ("choose: lr", "lr is not set"),
        ("{choose: lr, axes: {lr: [1]}}", "keep one"),
        ("parallel: 0", "parallel must be at least 1"),
        ("table: all", "table must be dice or candidates"),
        ("runs: {A: {tracks.personal.lam: 0.1}}", "row 'A': lam must be in"),
    ],
)
def test_a_bad_file_is_one_line_before_any_run(tmp_path, capsys, monkeypatch, content, words):
    monkeypatch.setattr(module, "start_process", lambda *_: pytest.fail("started"))
    for site in SITES:
        (tmp_path / "data" / site).mkdir(parents=True)
    file = tmp_path / "grid.yaml"
    file.write_text(content)
    task = [] if "task" in content else ["--task", "retinal"]
    code = main(["experiment", str(file), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), *task])
    err = capsys.readouterr().err
    assert code == 2 and words in err, err
    assert err.startswith("fedsm: error: ") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_file_names_the_packaged_ones(capsys):
    assert main(["experiment", "no_such"]) == 2
    err = capsys.readouterr().err
    assert "leave_one_out" in err and "main" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", available("experiments"))
def test_packaged_experiments_fit_six_sites(name, tmp_path):
    grid = Grid(load_experiment(name, {"size": 64}, {"out": str(tmp_path)}), tmp_path, [f"site-{i}" for i in range(6)])
    grid.check()
    assert grid.experiment.seeds == ([0] if name.startswith("nuclei_") else [0, 1, 2])
    assert grid.notes == (
        ["lam=0.1: left out: lam must be in [1/K, 1] = [0.1667, 1] for 6 sites, got 0.1"] if name == "lam" else []
    )


def test_mean_and_deviation():
    """0.8, 0.9, 0.7: mean 0.8; squares of the differences 0, 0.01, 0.01; 0.02 / 2 = 0.01, whose root is 0.1."""
    assert mean_std([0.8, 0.9, 0.7]) == (pytest.approx(0.8), pytest.approx(0.1))
    assert mean_std([0.8]) == (0.8, None)
    assert mean_std([0.8, None]) == mean_std([]) == (None, None)


def test_the_table(tmp_path):
    """Seeds 0 and 1 give 0.5 and 0.7 at site a: mean 0.6, deviation sqrt(2 * 0.1^2 / 1) = 0.1414; FedSM 0.02 more."""
    grid = make_grid(
        build("{runs: {FedSM: {}, FedAvg: {from: FedSM, show: global}}, seeds: [0, 1]}", out=tmp_path / "out"), tmp_path
    )
    started = []
    grid.out.mkdir()
    assert run_grid(grid, starter(lambda run: (0.5 + 0.2 * run.seed, 0.5), started)) == 0
    assert started == [("FedSM", None, 0), ("FedSM", None, 1)], "two rows, one run a seed"
    rows = {row["run"]: row for row in csv.DictReader((grid.out / "table.csv").open())}
    assert rows["FedSM"]["a"] == "0.620000" and rows["FedSM"]["a std"] == "0.141421"
    assert rows["FedSM"]["selector acc."] == "0.750000" and rows["FedSM"]["seeds"] == "2"
    assert rows["FedAvg"]["a"] == "0.600000" and rows["FedAvg"]["b"] == "0.700000"
    assert rows["FedAvg"]["client avg"] == "0.650000" and rows["FedAvg"]["global"] == "0.660000"
    assert rows["FedAvg"]["selector acc."] == ""
    text = (grid.out / "table.md").read_text()
    assert "0.6200 ± 0.1414" in text and "- FedAvg: `global` of the runs of FedSM" in text


def test_candidates_are_a_line_a_model(tmp_path):
    """personal.a: 0.5 at a (2 test images) and 0.7 at b (3): client avg 0.6, global (2 * 0.5 + 3 * 0.7) / 5 = 0.62."""
    grid = make_grid(build("{runs: {Local: {method: local}}, table: candidates}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    one, two = table_lines(grid.experiment, grid.outcomes, SITES)
    assert (one.name, two.name) == ("Local: a", "Local: b")
    assert {k: v[0] for k, v in one.cells.items()} == pytest.approx(
        {"a": 0.5, "b": 0.7, "client avg": 0.6, "global": 0.62}
    )


def test_costs_stand_beside_the_dice(tmp_path):
    """Down: sites get 1 and 3 MB in both rounds, mean 2. Up: 1 and 0 MB, then 1 and 2: mean 1. Rounds of 4 and 8 s."""
    sent = {"down_bytes": {"a": [10**6] * 2, "b": [3 * 10**6] * 2}, "up_bytes": {"a": [10**6] * 2, "b": [0, 2 * 10**6]}}
    assert cost_columns({"wire": sent, "seconds": {"round": [4.0, 8.0]}}) == {"MB down": 2, "MB up": 1, "s a round": 6}
    grid = make_grid(build("{runs: {Central: {method: centralized}}, costs: true}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    (line,) = table_lines(grid.experiment, grid.outcomes, SITES)
    assert line.cells["MB down"] == [None] and line.cells["a"] == [0.5]


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


def test_the_learning_rate_is_chosen_on_validation_images_of_the_first_seed(tmp_path):
    """lr 0.1 is better on validation (0.8 against 0.6) and worse in the test: it is taken, and alone for seed 1."""
    file = "{choose: lr, base: {lr: [0.1, 0.2]}, seeds: [0, 1], runs: {A: {}, B: {from: A, show: global}}}"
    grid = make_grid(build(file, out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    started = []
    assert run_grid(grid, starter(lambda run: {0.1: (0.3, 0.8), 0.2: (0.9, 0.6)}[run.choice], started)) == 0
    assert started == [("A", 0.1, 0), ("A", 0.2, 0), ("A", 0.1, 1)]
    assert choose(grid.rows[0], grid.experiment, grid.outcomes) == (0.1, {0.1: 0.8, 0.2: 0.6})
    assert choose(grid.rows[1], grid.experiment, grid.outcomes)[1] == pytest.approx({0.1: 0.7, 0.2: 0.5}), (
        "its own score"
    )
    (line, _) = table_lines(grid.experiment, grid.outcomes, SITES)
    assert line.cells["a"] == pytest.approx([0.32, 0.32])
    text = (grid.out / "table.md").read_text()
    assert "on the validation images of seed 0" in text and "|    0.1 |" in text


def test_validation_score_of_personal_models_is_pooled_over_images():
    """0.9 on 1 image and 0.5 on 3: (0.9 + 1.5) / 4 = 0.6."""
    scores = {"personal.a": {"score": 0.9}, "personal.b": {"score": 0.5}}
    content = {
        "gamma": None, "validation": {"best": scores}, "images": {"a": {"validation": 1}, "b": {"validation": 3}},
    }  # fmt: skip
    assert validation_score("personal_own", content) == pytest.approx(0.6)


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


def test_state_of_a_run(tmp_path):
    grid = build("{runs: {A: {method: fedavg}}}", out=tmp_path)
    run = grid.runs(grid.rows[0], None, 0, SITES)[0]

    def spec(run=run, data="data", sites=SITES):
        return spec_of(run, tmp_path / data, sites, None, tmp_path / "cache")

    assert state_of(run.folder, spec()) == "start"
    run.folder.mkdir(parents=True)
    (run.folder / "stranger").touch()
    with pytest.raises(UserError, match="holds something else"):
        state_of(run.folder, spec())
    (run.folder / SPEC).write_text(json.dumps(spec()))
    assert state_of(run.folder, spec()) == "start", "no checkpoint yet"
    (run.folder / "workspace/server/simulate_job/checkpoints").mkdir(parents=True)
    (run.folder / "workspace/server/simulate_job/checkpoints/round_000012.json").touch()
    assert run_folder.rounds_done(run.folder) == 12
    assert state_of(run.folder, spec()) == "resume"
    (run.folder / "results.json").write_text(json.dumps({"settings": run.settings.to_dict()}))
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
    with module._only_one(tmp_path), pytest.raises(UserError, match="is at work"), module._only_one(tmp_path):
        pass


def test_leave_one_out_reports_three_gammas(tmp_path):
    """4 images: gamma 0 takes no global model, 0.5 was chosen on validation images, 1 is the best in hindsight."""

    def row(gamma, dice, n_global):
        return {"gamma": gamma, "dice": {"x": dice}, "selected": {"global": n_global, "personal.b": 4 - n_global}}

    rows = [row(0.0, 0.2, 0), row(0.5, 0.3, 1), row(1.0, 0.6, 4)]
    unseen = {"site": "a", "gamma": 0.5, "evaluation": {"images": 4, "gammas": rows, "dice": {"global": {"x": 0.6}}}}
    assert [r["gamma"] for r in gammas_of(unseen).values()] == [0.0, 0.5, 1.0]
    experiment = build("{leave_one_out: true, runs: {S: {}, G: {from: S, show: global}}}", out=tmp_path)
    outcomes = {("S", None, 0): [{"unseen": unseen, "gamma": 0.5, "gamma_sweep": [{"gamma": 0.5, "validation": 1}],
                                  "validation": {"best": {"global": {"score": 1}}}}]}  # fmt: skip
    lines = {line.name: line.cells for line in table_lines(experiment, outcomes, SITES)}
    assert lines["G"] == {"a": [0.6], "b": [None], "avg": [None]}
    assert [lines[f"S: {g}"]["a"] for g in gammas_of(unseen)] == [[0.2], [0.3], [0.6]]
    chosen = {line.name: line.cells for line in table_lines(experiment, outcomes, SITES, selection=True)}
    assert chosen["S: gamma of validation: unseen a"] == {"global": [0.25], "a": [None], "b": [0.75], "Dice": [0.3]}
    assert len(experiment.runs(experiment.rows[0], None, 0, SITES)) == 2


def small_data(root: Path, sites: tuple[str, ...]) -> Path:
    for seed, site in enumerate(sites):
        write_site(root / site, 6, seed)
    return root


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
        "kind": "ditto"
    }
    assert sorted(p.name for p in (tmp_path / "out" / "cache").iterdir()) == ["alpha", "beta"], "one for all runs"
    assert not list((tmp_path / "out" / "runs").rglob("cache"))
    assert not processes_of(tmp_path)
    started = time.time()
    assert main(command) == 0 and capsys.readouterr().out == text
    assert time.time() - started < 10 and main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("done") == 2
    assert main([*command, "--rounds", "2"]) == 2 and "another 'rounds'" in capsys.readouterr().err


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
    (run.folder / UNSEEN).unlink()
    assert state_of(run.folder, spec) == "resume"
    stamp = (run.folder / "results.json").stat().st_mtime_ns
    complete(run.folder, spec)
    assert json.loads((run.folder / UNSEEN).read_text()) == first
    assert (run.folder / "results.json").stat().st_mtime_ns == stamp


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_grid_goes_on(tmp_path, how):
    """Ctrl-C stops all processes; after kill -9 the run's process notices. The second call resumes."""
    data = small_data(tmp_path / "data", ("alpha", "beta"))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({"base": SMALL | {"rounds": 12}, "runs": {"A": {}}}))
    command = ["experiment", str(file), "--data", str(data), "--out", str(tmp_path / "out")]
    process = subprocess.Popen([sys.executable, "-m", "app_fedsm.cli", *command], env=os.environ)
    folder, deadline = tmp_path / "out/runs/A/seed-0", time.time() + 120
    while run_folder.rounds_done(folder) < 2 and time.time() < deadline:
        time.sleep(0.02)
    process.send_signal(how)
    assert process.wait(60) == (130 if how == signal.SIGINT else -how)
    while processes_of(folder) and time.time() < deadline:
        time.sleep(0.2)
    assert not processes_of(folder)
    assert (
        not (folder / "results.json").exists()
        and grid_run.state_of(folder, json.loads((folder / SPEC).read_text())) == "resume"
    )
    assert main(command) == 0
    history = json.loads((folder / "results.json").read_text())["validation"]["history"]
    assert [row["round"] for row in history] == list(range(1, 13))
