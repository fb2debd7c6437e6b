"""`fedsm evaluate` on a real small run: the same Dice as the sites measured, and everything beside it."""

import csv
import json
import shutil

import pytest

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from app_fedsm.cli.main import main
from fedsm.evaluation.tables import dice_table
from tests.helpers.finished_run import finished_run
from tests.helpers.small_jobs import SITES, write_site


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("run"), data_root)


@pytest.fixture(scope="module")
def out(run, data_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    assert main(["evaluate", str(run / "super_model"), str(data_root), "-o", str(folder)]) == 0
    return folder


def test_same_as_the_federation_measured(run, out):
    """The sites' own tables of results.json, from the same images."""
    results, evaluation = (
        json.loads((f / n).read_text()) for f, n in ((run, "results.json"), (out, "evaluation.json"))
    )
    assert json.loads((run / "super_model" / "manifest.json").read_text())["files"] == "pictures", "as the sites said"
    for row in ("super_model", "personal_own", "global"):
        for site in SITES:
            mean = evaluation["models"][row][site]["dice"]["mean"]
            assert mean["mean"] == pytest.approx(results["test"][row]["per_site"][site], abs=1e-6)
            assert mean["low"] <= mean["mean"] <= mean["high"]
        averages = evaluation["averages"][row]["dice"]["mean"]
        assert averages["client_avg"]["mean"] == pytest.approx(results["test"][row]["client_avg"], abs=1e-6)
        assert averages["global"]["mean"] == pytest.approx(results["test"][row]["global"], abs=1e-6)
    for site, candidates in results["test"]["candidates"].items():
        for model, dice in candidates.items():
            assert evaluation["models"][model][site]["dice"]["mean"]["mean"] == pytest.approx(dice, abs=1e-6)
    assert [r["gamma"] for r in evaluation["gammas"]] == [r["gamma"] for r in results["gamma_sweep"]]
    for mine, theirs in zip(evaluation["gammas"], results["gamma_sweep"], strict=True):
        assert mine["global"] == pytest.approx(theirs["test"], abs=1e-6)
    assert evaluation["images"] == {site: n["test"] for site, n in results["images"].items()}
    named = {s: {f"personal.{k}": n for k, n in row.items()} for s, row in results["test"]["first_choice"].items()}
    assert evaluation["confusion"] == named
    accuracy = results["test"]["selector_accuracy"]["per_site"]
    right = sum(accuracy[s] * n for s, n in evaluation["images"].items()) / sum(evaluation["images"].values())
    assert evaluation["reliability"]["accuracy"] == pytest.approx(right)


def test_models_are_compared_on_the_same_images(out):
    """The difference of the means, with an interval, in the tables and in the file; images only under digests."""
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert [(e["first"], e["second"]) for e in evaluation["paired"]] == [
        ("super_model", "global"), ("super_model", "personal_own"), ("personal_own", "global"),
    ]  # fmt: skip
    for entry in evaluation["paired"]:
        one, two = (evaluation["averages"][entry[key]]["dice"]["mean"] for key in ("first", "second"))
        for average in ("client_avg", "global"):
            assert entry[average]["mean"] == pytest.approx(one[average]["mean"] - two[average]["mean"], abs=1e-9)
        assert 0 < entry["p"] <= 1 and entry["images"] == sum(evaluation["images"].values())
    text = (out / "evaluation.md").read_text()
    assert "| super model - global " in text and "Wilcoxon" in text and "| images (patients)" in text
    assert "worst site" in text and "spread over sites" in text
    single = (out / "image_scores.json").read_text()
    assert "case_" not in single and (out / "image_scores.json").stat().st_mode & 0o77 == 0
    assert len(json.loads(single)["sites"]["site-1"]["images"]) == evaluation["images"]["site-1"]


def test_both_accuracies_of_the_selector_are_shown_and_labelled(run, data_root, out, tmp_path, capsys):
    """The mean over sites and the share of all images, the same two in the run's table and in the evaluation."""
    results = json.loads((run / "results.json").read_text())
    *_, mean, pooled = dice_table(results).splitlines()[-1].split()
    confusion = json.loads((out / "evaluation.json").read_text())["confusion"]
    right = {site: counts[f"personal.{site}"] for site, counts in confusion.items()}
    images = {site: sum(counts.values()) for site, counts in confusion.items()}
    assert float(mean) == pytest.approx(sum(right[s] / images[s] for s in SITES) / len(SITES), abs=1e-4)
    assert float(pooled) == pytest.approx(sum(right.values()) / sum(images.values()), abs=1e-4)
    assert main(["evaluate", str(run / "super_model"), str(data_root), "-o", str(tmp_path)]) == 0
    told = f"accuracy {float(mean):.3f} (client avg: mean over sites) and {float(pooled):.3f} (all images)"
    assert f"selector: {told}" in capsys.readouterr().out
    assert told in (tmp_path / "evaluation.md").read_text()


def test_labels_have_rows_of_their_own(out):
    rows = list(csv.DictReader((out / "evaluation.csv").open()))
    assert {r["label"] for r in rows} == {"disc", "cup", "mean"} and {r["metric"] for r in rows} == {
        "dice",
        "iou",
        "hd95",
    }
    assert {r["unit"] for r in rows if r["metric"] == "hd95"} == {"px"}
    assert len(rows) == (3 + 3) * 3 * 3 * 3, "super model, own, global and three personal; sites; metrics; labels"
    text = (out / "evaluation.md").read_text()
    assert "## Every model on every site" in text and "## Dice at every gamma" in text and "ECE" in text
    assert "**Not a medical device**" in (out / "MODEL_CARD.md").read_text()
    assert "bootstrap by patient" in (out / "MODEL_CARD.md").read_text()


def test_twice_the_same(run, data_root, out, tmp_path):
    assert main(["evaluate", str(run / "super_model"), str(data_root), "-o", str(tmp_path)]) == 0
    assert (tmp_path / "evaluation.json").read_text() == (out / "evaluation.json").read_text()


def test_a_site_from_elsewhere(run, tmp_path, capsys):
    """It has no part in the split; with --part all it is scored, by no personal model of its own."""
    write_site(tmp_path / "elsewhere", 4, 7)
    command = ["evaluate", str(run / "super_model"), str(tmp_path / "elsewhere"), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    assert "--part all" in capsys.readouterr().err
    assert main([*command, "--part", "all"]) == 0
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert evaluation["images"] == {"elsewhere": 4} and "personal_own" not in evaluation["models"]
    assert evaluation["reliability"] is None and sum(evaluation["selected"]["elsewhere"].values()) == 4


def test_files_that_changed_since_training_are_refused(run, data_root, tmp_path, capsys):
    """Another split could test on what was trained on."""
    data = tmp_path / "data"
    shutil.copytree(data_root, data)
    for part in ("images", "masks"):
        for i in range(6):
            (data / "site-1" / part / f"case_{i:02d}.png").unlink()
    assert main(["evaluate", str(run / "super_model"), str(data), "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "site-1" in error and "files have changed" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_is_no_super_model(data_root, tmp_path, capsys):
    assert main(["evaluate", str(tmp_path), str(data_root)]) == 2
    assert "give the folder of a super model or of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "DATA is missing"),
        (["data", "--kit", "kit"], "--kit is for --env prod, not for --env local"),
        (["data", "--byoc"], "--byoc is for --env poc or prod, not for --env local"),
        (["data", "--env", "poc"], "DATA is for --env local, not for --env poc"),
        (["--env", "prod", "--dir", "poc"], "--dir is for --env poc, not for --env prod"),
        (["--env", "prod", "--kit", "kit"], "--env prod needs --kit and --sites"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(tmp_path, capsys, options, words):
    assert main(["evaluate", str(tmp_path), *options, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
