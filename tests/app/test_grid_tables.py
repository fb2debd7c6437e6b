"""The tables of an experiment."""

import csv

import pytest

from app_fedsm.experiments.experiment import run_grid
from app_fedsm.experiments.grid_format import Line, as_csv, as_markdown
from app_fedsm.experiments.grid_tables import choose, cost_columns, gammas_of, table_lines, validation_score
from tests.helpers.grid_tools import SITES, build, make_grid, starter


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
    assert rows["FedSM"]["selector acc., client avg"] == "0.750000" and rows["FedSM"]["seeds"] == "2"
    assert rows["FedSM"]["selector acc., all images"] == "0.800000", "0.5 of 2 images and all of 3"
    assert rows["FedAvg"]["a"] == "0.600000" and rows["FedAvg"]["b"] == "0.700000"
    assert rows["FedAvg"]["client avg"] == "0.650000" and rows["FedAvg"]["all images"] == "0.660000"
    assert rows["FedAvg"]["selector acc., client avg"] == ""
    assert (rows["FedAvg"]["worst site"], rows["FedAvg"]["worst site, Dice"]) == ("a", "0.600000")
    assert rows["FedAvg"]["spread over sites"] == "0.070711", "0.6 and 0.7: the root of 2 * 0.05^2"
    assert (rows["FedAvg"]["a test images"], rows["FedAvg"]["b test images"]) == ("2", "3")
    text = (grid.out / "table.md").read_text()
    counts, fedsm = ([c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()[6:8])
    assert counts == ["test images", "", "2", "3", "", "5", "", "", "", ""]
    assert fedsm[-2:] == ["0.6200 (a)", "0.0707"]
    assert "0.6200 ± 0.1414" in text and "- FedAvg: `global` of the runs of FedSM" in text


def test_counts_of_test_images_may_differ_from_seed_to_seed():
    """Seeds split the patients in different ways: 2 + 3 and 4 + 3 images."""
    line = Line("A", {"a": [0.5, 0.7], "b": [0.7, 0.7], "all images": [0.6, 0.7]}, {"a": [2, 4], "b": [3, 3]})
    _, _, counts, row = as_markdown([line]).splitlines()
    assert [c.strip() for c in counts.split("|")[1:-1]] == ["test images", "", "2 to 4", "3", "5 to 7", "", ""]
    assert [c.strip() for c in row.split("|")[-3:-1]] == ["0.6000 (a)", "0.0707"]
    selection = Line("A", {"global": [0.5], "a": [0.5]})
    assert "worst site" not in as_markdown([selection]) + as_csv([selection]), "shares of images, not Dice"


def test_candidates_are_a_line_a_model(tmp_path):
    """personal.a: 0.5 at a (2 test images), 0.7 at b (3): client avg 0.6, all images (2 * 0.5 + 3 * 0.7) / 5 = 0.62."""
    grid = make_grid(build("{runs: {Local: {method: local}}, table: candidates}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    one, two = table_lines(grid.experiment, grid.outcomes, SITES)
    assert (one.name, two.name) == ("Local: a", "Local: b")
    assert {k: v[0] for k, v in one.cells.items()} == pytest.approx(
        {"a": 0.5, "b": 0.7, "client avg": 0.6, "all images": 0.62}
    )


def test_labels_have_tables_of_their_own(tmp_path):
    """disc: 0.8 at a (2 test images), 0.6 at b (3): client avg 0.7, all images (1.6 + 1.8) / 5 = 0.68."""
    grid = make_grid(build("{runs: {FedSM: {}, All: {from: FedSM, show: candidates}}}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    assert not (grid.out / "table_disc.csv").exists(), "one label needs none"
    (found,) = grid.outcomes[("FedSM", None, 0)]
    disc = {
        "super_model": {"per_site": {"a": 0.8, "b": 0.6}},
        "candidates": {"a": {"personal.a": 0.3}, "b": {"personal.a": 0.5}},
    }
    found["test"]["labels"] = {"disc": disc, "cup": {"super_model": {"per_site": {"a": 0.1, "b": None}}}}
    text = grid.write_tables()
    assert "\ndisc:\n" in text and "\ncup:\n" in text
    rows = {row["run"]: row for row in csv.DictReader((grid.out / "table_disc.csv").open())}
    assert [float(rows["FedSM"][c]) for c in ("a", "b", "client avg", "all images")] == pytest.approx(
        [0.8, 0.6, 0.7, 0.68]
    )
    assert [float(rows["All: a"][c]) for c in ("a", "b", "client avg")] == pytest.approx([0.3, 0.5, 0.4])
    cup = next(csv.DictReader((grid.out / "table_cup.csv").open()))
    assert (cup["a"], cup["b"], cup["client avg"], cup["all images"]) == ("0.100000", "", "", ""), "b did not answer"


def test_a_site_that_is_missing_in_the_evaluation_leaves_no_average(tmp_path):
    grid = make_grid(build("{runs: {FedSM: {}}}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    grid.outcomes[("FedSM", None, 0)][0]["test"]["super_model"]["per_site"]["b"] = None
    (line,) = table_lines(grid.experiment, grid.outcomes, SITES)
    assert line.cells["a"] == [0.52] and line.cells["client avg"] == line.cells["all images"] == [None]


def test_no_accuracy_for_a_selector_that_does_not_name_sites(tmp_path):
    """FedSM-extra learns which model is best for an image, not whose image it is."""
    grid = make_grid(build("{runs: {FedSM: {}}}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    grid.outcomes[("FedSM", None, 0)][0]["gamma"] = None
    (line,) = table_lines(grid.experiment, grid.outcomes, SITES)
    assert line.cells["selector acc., client avg"] == line.cells["selector acc., all images"] == [None] and line.cells[
        "a"
    ] == [0.52]


def test_costs_stand_beside_the_dice(tmp_path):
    """Down: 1 and 3 MB in both rounds, 2 and 6 in all: mean 4. Up: 2 in all each, and a has sent sums of 1 MB: 2.5."""
    sent = {"down_bytes": {"a": [10**6] * 2, "b": [3 * 10**6] * 2}, "up_bytes": {"a": [10**6] * 2, "b": [0, 2 * 10**6]}}
    sent["registration_up_bytes"] = {"a": 10**6}
    costs = cost_columns({"wire": sent, "seconds": {"round": [4.0, 8.0]}}, parallel=1)
    assert costs == {"MB down": 4, "MB up": 2.5, "s per round": 6}
    assert "s per round (2 runs at once)" in cost_columns({"wire": sent, "seconds": {"round": [4.0]}}, parallel=2)
    grid = make_grid(build("{runs: {Central: {method: centralized}}, costs: true}", out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    run_grid(grid, starter(lambda run: (0.5, 0.5)))
    (line,) = table_lines(grid.experiment, grid.outcomes, SITES)
    assert line.cells["MB down"] == [None] and line.cells["a"] == [0.5]


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
    assert "on the validation images of seed 0" in text and "|      0.1 |" in text


def test_one_value_is_no_choice(tmp_path):
    grid = make_grid(build("{choose: lr, base: {lr: [0.1, 0.2]}}", {"lr": 0.3}, out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    assert run_grid(grid, starter(lambda run: (0.5, 0.5))) == 0
    assert [run.choice for run in grid.first()] == [0.3]
    assert "chosen" not in (grid.out / "table.md").read_text()


def test_validation_score_is_that_of_what_is_shown():
    """Not 0.4, the selector's in its best round: the networks were others then than those of the super model."""
    best = {"global": {"score": 0.9}, "personal.a": {"score": 0.8}, "selector": {"score": 0.4}}
    content = {"validation": {"best": best, "super_model": 0.3}, "images": {"a": {"validation": 1}}}
    assert validation_score("super_model", content) == 0.3
    assert validation_score("global", content) == 0.9 and validation_score("personal_own", content) == 0.8


def test_validation_score_of_soft_selection_is_its_own():
    """At gamma 0.5, the hard choice's, the mixture has 0.6; at its own gamma of 1 it has 0.7."""
    sweep = [{"gamma": g, "validation": v, "blend": {"validation": b}} for g, v, b in ((0.5, 0.9, 0.6), (1, 0.8, 0.7))]
    content = {"gamma_sweep": sweep, "validation": {"best": {}, "super_model": 0.9}}
    assert (validation_score("super_model", content), validation_score("blend", content)) == (0.9, 0.7)


def test_validation_score_of_algorithm_2_is_at_its_own_gamma():
    """The super model's policy has 0.95; hard selection alone has 0.8 at the gamma that was chosen for it."""
    sweep = [{"gamma": 0.5, "validation": 0.9}, {"gamma": 1, "validation": 0.8}]
    content = {"gamma_sweep": sweep, "hard_gamma": 1, "validation": {"best": {}, "super_model": 0.95}}
    assert validation_score("algorithm2", content) == 0.8


def test_validation_score_of_personal_models_is_pooled_over_images():
    """0.9 on 1 image and 0.5 on 3: (0.9 + 1.5) / 4 = 0.6."""
    scores = {"personal.a": {"score": 0.9}, "personal.b": {"score": 0.5}}
    content = {
        "validation": {"best": scores, "super_model": None}, "images": {"a": {"validation": 1}, "b": {"validation": 3}},
    }  # fmt: skip
    assert validation_score("personal_own", content) == pytest.approx(0.6)


def test_leave_one_out_reports_the_super_model_and_three_gammas(tmp_path):
    """4 images: gamma 0 takes no global model, 0.5 was chosen on validation images, 1 is the best in hindsight. The
    super model finds 3 of 4 images foreign."""

    def row(gamma, dice, n_global):
        return {"gamma": gamma, "dice": {"x": dice}, "selected": {"global": n_global, "personal.b": 4 - n_global}}

    rows = [row(0.0, 0.2, 0), row(0.5, 0.3, 1), row(1.0, 0.6, 4)]
    evaluation = {"images": 4, "gammas": rows, "dice": {"global": {"x": 0.6}}, "policy": row(0.3, 0.5, 3)}
    policy = {"gamma": 0.3, "delta": 1.5, "share": 0.0, "flip": False}
    unseen = {"site": "a", "policy": policy, "hard_gamma": 0.5, "evaluation": evaluation}
    assert [r["gamma"] for r in gammas_of(unseen).values()] == [0.3, 0.0, 0.5, 1.0]
    tried = unseen | {"policy": policy | {"delta": None}, "evaluation": evaluation | {"gammas": rows[:0:-1]}}
    assert list(gammas_of(tried)) == ["gamma of validation", "best gamma (hindsight)"], (
        "0 was not tried, and the policy is plain"
    )
    experiment = build("{leave_one_out: true, runs: {S: {}, G: {from: S, show: global}}}", out=tmp_path)
    validation = {"best": {"global": {"score": 1}}, "super_model": 1}
    outcomes = {("S", None, 0): [{"unseen": unseen, "gamma": 0.5, "validation": validation}]}
    lines = {line.name: line.cells for line in table_lines(experiment, outcomes, SITES)}
    assert lines["G"] == {"a": [0.6], "b": [None], "avg": [None]}
    assert [lines[f"S: {g}"]["a"] for g in gammas_of(unseen)] == [[0.5], [0.2], [0.3], [0.6]]
    chosen = {line.name: line.cells for line in table_lines(experiment, outcomes, SITES, selection=True)}
    assert chosen["S: gamma of validation: unseen a"] == {
        "global": [0.25], "a": [None], "b": [0.75], "gamma": [0.5], "Dice": [0.3],
    }  # fmt: skip
    assert len(experiment.runs(experiment.rows[0], None, 0, SITES)) == 2
