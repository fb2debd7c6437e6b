"""Rows of an experiment on the same images, and against what a site reaches alone."""

import csv

import pytest

from app_fedsm.experiments.experiment import run_grid
from app_fedsm.experiments.grid_fair import below_local_lines, compare_rows
from fedsm.core.errors import UserError
from tests.helpers.grid_tools import SITES, build, make_grid, starter

ROWS = "{FedSM: {}, FedAvg: {from: FedSM, show: global}, Local: {method: local}}"


def scored(run, images=("1", "2"), **dice):
    """A run's file: the same images and patients at both sites."""
    site = {"images": list(images), "patients": list(images), "dice": dice}
    return {"run_id": None, "part": "test", "sites": dict.fromkeys(SITES, site)}


def finished(tmp_path, content, image_scores, dice=lambda run: 0.5):
    grid = make_grid(build(content, out=tmp_path / "out"), tmp_path)
    grid.out.mkdir()
    assert run_grid(grid, starter(lambda run: (dice(run), 0.5), image_scores=image_scores)) == 0
    return grid


def by_seed(run):
    """Seed 0 tests on the patients 1 and 2, seed 1 on 2 and 3; FedSM gains 0.1, 0.2; 0.4, 0.1 on FedAvg."""
    images = (("1", "2"), ("2", "3"))[run.seed]
    gains = ((0.1, 0.2), (0.4, 0.1))[run.seed]
    better = {"super_model": [0.5 + gain for gain in gains], "global": [0.5, 0.5]}
    return scored(run, images, **(better if run.source == "FedSM" else {"personal_own": [0.5, 0.5]}))


def test_seeds_are_pooled_and_a_patient_counts_once(tmp_path):
    """Each site: four differences, 0.1, 0.2, 0.4, 0.1, of three patients whose means are 0.1, 0.3 and 0.1.

    Mean over images 0.2. All three patients gain: p = 2 / 8 at a site, 2 / 64 over the six of both.
    """
    grid = finished(tmp_path, f"{{seeds: [0, 1], runs: {ROWS}}}", by_seed)
    found = compare_rows(grid.experiment, grid.outcomes)["FedAvg"]
    assert found["client_avg"]["mean"] == pytest.approx(0.2) and found["global"]["mean"] == pytest.approx(0.2)
    assert (found["per_site"]["a"]["images"], found["per_site"]["a"]["patients"]) == (4, 3)
    assert found["per_site"]["a"]["p"] == pytest.approx(2 / 8) and found["p"] == pytest.approx(2 / 64)
    assert (found["images"], found["patients"], found["seeds"]) == (8, 6, 2)


def test_the_table_and_the_csv_tell_the_comparison(tmp_path):
    grid = finished(tmp_path, f"{{seeds: [0, 1], runs: {ROWS}}}", by_seed)
    text = (grid.out / "table.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| FedSM - FedAvg")]
    assert "+0.2000" in line and "0.0312" in line and line.rstrip(" |").endswith("2")
    rows = {(r["second"], r["site"]): r for r in csv.DictReader((grid.out / "paired.csv").open())}
    assert rows["FedAvg", "all images"]["mean"] == "0.200000" and rows["FedAvg", "all images"]["p"] == "0.031250"
    assert rows["FedAvg", "client avg"]["p"] == "" and rows["Local", "b"]["patients"] == "3"
    assert {r["first"] for r in rows.values()} == {"FedSM"}


def test_the_row_to_compare_with_is_the_first_super_model_or_the_one_that_is_named(tmp_path):
    assert build(f"{{runs: {ROWS}}}").compare.name == "FedSM"
    assert build("{runs: {A: {method: fedavg}, S: {}}}").compare.name == "S"
    assert build("{runs: {A: {method: fedavg}, B: {method: local}}}").compare.name == "A"
    assert build(f"{{compare: Local, runs: {ROWS}}}").compare.name == "Local"
    with pytest.raises(UserError, match="compare: 'FedProx' is no row; it may be FedSM, FedAvg, Local"):
        build(f"{{compare: FedProx, runs: {ROWS}}}")


def test_other_images_are_not_compared(tmp_path):
    """A run on other images, and one whose scores could not be made."""

    def image_scores(run):
        if run.source == "Other":
            return scored(run, ("1", "3"), super_model=[0.5, 0.5])
        return {"absent": "no super model"} if run.source == "Lost" else scored(run, super_model=[0.6, 0.5])

    grid = finished(tmp_path, "{runs: {S: {}, Same: {rounds: 2}, Other: {rounds: 3}, Lost: {rounds: 4}}}", image_scores)
    assert list(compare_rows(grid.experiment, grid.outcomes)) == ["Same"]
    assert "Not compared: Other, Lost (" in (grid.out / "table.md").read_text()


def test_a_row_below_local_is_a_warning(tmp_path):
    """FedSM's results are 0.02 above the made-up run's (0.5 at a, 0.6 at b); Local has 0.6 at a and 0.55 at b."""
    grid = finished(tmp_path, f"{{runs: {ROWS}}}", scored)
    ((local,),) = [found for key, found in grid.outcomes.items() if key[0] == "Local"]
    local["test"]["personal_own"] = {"per_site": {"a": 0.6, "b": 0.55}, "per_label": {"disc": 0.5}}
    assert below_local_lines(grid.experiment, grid.outcomes, SITES) == [
        "FedSM is worse than Local at a (0.5200 against 0.6000): that hospital would leave",
        "FedAvg is worse than Local at a (0.5000 against 0.6000): that hospital would leave",
    ]
    assert "**Warning:** FedSM is worse than Local at a (0.5200 against 0.6000)" in grid.write_tables()
    local["test"]["personal_own"]["per_site"] = {"a": 0.50004, "b": None}
    assert not below_local_lines(grid.experiment, grid.outcomes, SITES), "no digit that the table shows; no answer"


def test_centralized_training_is_no_federation_that_one_could_leave(tmp_path):
    grid = finished(tmp_path, "{runs: {C: {method: centralized}, Local: {method: local}}}", scored)
    ((local,),) = [found for key, found in grid.outcomes.items() if key[0] == "Local"]
    local["test"]["personal_own"] = {"per_site": {"a": 0.9, "b": 0.9}, "per_label": {"disc": 0.9}}
    assert not below_local_lines(grid.experiment, grid.outcomes, SITES)


def test_on_axes_a_row_is_held_against_local_at_the_same_point(tmp_path):
    content = "{axes: {size: [32, 64]}, runs: {G: {method: fedavg}, Local: {method: local}}}"
    grid = finished(tmp_path, content, scored)
    for (source, *_), (found,) in grid.outcomes.items():
        if source.startswith("Local"):
            found["test"]["personal_own"] = {"per_site": {"a": 0.9, "b": 0.4}, "per_label": {"disc": 0.5}}
    told = below_local_lines(grid.experiment, grid.outcomes, SITES)
    assert [line.split(" at ")[0] for line in told] == [
        "G size=32 is worse than Local size=32", "G size=64 is worse than Local size=64"
    ]  # fmt: skip
