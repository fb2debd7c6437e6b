"""From an experiment's file to its rows and runs."""

import pytest

from app_fedsm.cli.main import main
from app_fedsm.config.build import available
from app_fedsm.experiments import experiment as module
from app_fedsm.experiments.grid import build_experiment, load_experiment
from app_fedsm.experiments.grid_rows import job_settings
from app_fedsm.experiments.grid_state import Grid
from fedsm.core.errors import UserError
from tests.helpers.grid_tools import SITES, build, names


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
    assert one.tracks["personal"] == {"kind": "softpull", "lam": 0.6, "pull": "uniform", "norm": "pulled", "alone": 0.0}
    assert one.tracks["selector"] == {"kind": "selector_fedavg"}
    assert set(two.tracks) == {"global"}
    with pytest.raises(UserError, match="row 'B': method 'fedavg' has no personal track"):
        build("runs: {B: {method: fedavg, lam: 0.6}}")


@pytest.mark.parametrize("name", ["main", "personalization", "selectors", "leave_one_out"])
@pytest.mark.parametrize("option", [{"selector": "gradient"}, {"personal": "fedbn"}, {"lam": 0.6}, {"blend": True}])
def test_an_option_for_all_rows_makes_no_row_another_method(name, option):
    """FedSM-extra keeps its selector, Local and the personal models of single rows theirs."""
    plain, given = (load_experiment(name, {"task": "retinal"} | more).rows for more in ({}, option))
    assert [row.name for row in plain] == [row.name for row in given]
    for before, after in zip(plain, given, strict=True):
        choose = "lr" if before.choices != (None,) else None
        one, two = (job_settings(row.options, choose, row.choices[0], 0) for row in (before, after))
        if not one.method.startswith("fedsm"):
            assert two.tracks == one.tracks
        if one.method in ("fedsm-extra", "fedsm-ensemble"):
            assert two.tracks["selector"] == one.tracks["selector"]
        if "personal" in before.options:
            assert two.tracks["personal"]["kind"] == one.tracks["personal"]["kind"]


@pytest.mark.parametrize("key", ["tracks.globl.mu", "tracks.personal.prox", "lam", "selector"])
def test_an_option_that_means_nothing_to_any_row_is_refused(key):
    with pytest.raises(UserError, match=f"option '{key}' means nothing to any row"):
        build("{runs: {A: {method: fedavg}, B: {method: fedprox}}}", {key: "gradient" if key == "selector" else 0.5})


def test_points_of_the_axes_that_do_not_go_together():
    """FedAvg has no personal model, and Ditto no lam: refused, or one row each for all values that they do not have."""
    grid = "{axes: {method: [fedavg, fedsm], personal: [softpull, ditto], lam: [0.6, 0.7]}"
    with pytest.raises(UserError, match=r"row 'method=fedavg.*`unfit: skip` leaves such rows out"):
        build(grid + "}")
    found = build(grid + ", unfit: skip}")
    assert names(found) == [
        "method=fedavg", *(f"method=fedsm, personal=softpull, lam={lam}" for lam in (0.6, 0.7)),
        "method=fedsm, personal=ditto",
    ]  # fmt: skip
    assert not found.left_out
    with pytest.raises(UserError, match="option 'lam' means nothing to any row"):
        build("{runs: {A: {method: fedavg}}, axes: {lam: [1]}, unfit: skip}")
    with pytest.raises(UserError, match="no row fits: row 'A lr=1': method 'fedavg' has no personal track"):
        build("{runs: {A: {method: fedavg, lam: 0.6}}, axes: {lr: [1]}, unfit: skip}")


def test_what_is_chosen_must_mean_something_to_a_row():
    grid = "{choose: lam, base: {lam: [0.6, 0.7]}, runs: {A: {}, B: {method: fedavg}, C: {personal: ditto}}"
    with pytest.raises(UserError, match="row 'B': method 'fedavg' has no personal track: lam means nothing"):
        build(grid + "}")
    assert names(build(grid + ", unfit: skip}")) == ["A"]
    kinds = build("{choose: personal, base: {personal: [softpull, ditto]}, runs: {A: {}, B: {method: fedsm-extra}}}")
    assert [row.choices for row in kinds.rows] == [("softpull", "ditto")] * 2


def test_options_of_the_command_win_over_the_base_and_rows_over_both():
    content = {"base": {"task": "retinal", "rounds": 3}, "runs": {"A": {}, "B": {"rounds": 9}}}
    grid = build_experiment("x", content, {"rounds": 5}, {}, [("A", "lr=1e-4")])
    settings = [grid.runs(row, None, 0, SITES)[0].settings for row in grid.rows]
    assert [s.rounds for s in settings] == [5, 9]
    assert [s.lr for s in settings] == [1e-4, 1e-2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("runs: [", "no YAML"),
        ("runs: {A: {}, A: {}}", "'A' occurs twice"),
        ("- a", "must hold `key: value` lines"),
        ("title: t\nrnus: {}", "grid.yaml, line 2: unknown setting 'rnus'; did you mean 'runs'?"),
        ("base: {rouns: 1}", "unknown setting 'rouns'"),
        ("base: {rounds: many}", "rounds must be a whole number"),
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
        ("{base: {blend: true}, runs: {A: {method: fedsm-extra, show: blend}}}", "no blend to show"),
        ("{base: {method: fedsm-extra}, runs: {A: {show: algorithm2}}}", "no algorithm2 to show"),
        ("{runs: {A: {method: local}}, leave_one_out: true}", "personal_own means nothing"),
        ("runs: {A b: {}, A_b: {}}", "would share a folder"),
        ("runs: {A: {from: [B]}, B: {}}", "row 'A': from must be a word"),
        ("runs: {A: {show: [global]}}", "row 'A': show must be a word"),
        ("runs: {A: {task.name: !!timestamp 2024-01-01}}", "no YAML: could not determine"),
        ("{choose: method, base: {method: [fedsm, fedavg]}}", "a method cannot be chosen: make each one a row"),
        ("{choose: selector, base: {selector: [statistics, extra]}}", "are read in different ways; make them rows"),
        ("runs: {A: {method: magic}}", "local, scaffold, centralized"),
        ("seeds: [9223372036854775808]", "seeds[0] must be a whole number from 0 to 9223372036854775807"),
        ("runs: {A: 1}", "mapping of options"),
        ("axes: {lam: 0.5}", "axes.lam must be a list of at least one value, got 0.5"),
        ("seeds: [0, 0]", "different whole numbers"),
        ("choose: lr", "lr is not set"),
        ("{choose: lr, axes: {lr: [1]}}", "keep one"),
        ("parallel: 0", "parallel must be a whole number of at least 1, got 0"),
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
    few = name.startswith("nuclei_") or name in ("best_ablation", "best_left_out")
    assert grid.experiment.seeds == ([0] if few else [0, 1, 2])
    assert grid.notes == (
        ["lam=0.1: left out: lam must be in [1/K, 1] = [0.1667, 1] for 6 sites, got 0.1"] if name == "lam" else []
    )
