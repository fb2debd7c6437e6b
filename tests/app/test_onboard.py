"""`fedsm onboard` on a real small run: a new site, with all, some and no masks."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from app_fedsm.cli.main import main
from app_fedsm.cli.onboard_document import Onboarding
from app_fedsm.cli.onboard_text import describe
from fedsm.nets import build_unet
from tests.helpers.finished_run import finished_run
from tests.helpers.json_output import ask
from tests.helpers.small_jobs import SITES, small_settings, write_site
from tests.helpers.small_model import write_super_model


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_root):
    return finished_run(tmp_path_factory.mktemp("run"), data_root)


@pytest.fixture
def elsewhere(tmp_path):
    """Six images in a colour that no site has."""
    write_site(tmp_path / "elsewhere", 6, 7)
    return tmp_path / "elsewhere"


def test_a_twin_resembles_its_site(run, tmp_path, capsys):
    """The images of site-2's generator: nearest to site-2, which has the largest share in the start."""
    write_site(tmp_path / "twin", 6, 1)
    data = ask(capsys, "onboard", run, tmp_path / "twin")[0]["data"]
    nearest = {site: like["nearest"] for site, like in data["sites"].items()}
    assert nearest == {SITES[0]: 0, SITES[1]: 1, SITES[2]: 0}
    closest = min(data["sites"], key=lambda site: data["sites"][site]["distance"])
    largest = max(data["sites"], key=lambda site: data["sites"][site]["share"])
    assert closest == largest == SITES[1]
    assert sum(like["share"] for like in data["sites"].values()) == pytest.approx(1)
    assert data["sites"][SITES[1]]["distance"] < data["between_sites"]["low"] <= data["between_sites"]["high"]
    assert sum(data["used"].values()) == data["images"] == 6 and data["start"] is None


def test_a_stranger_is_far_from_every_site(run, elsewhere, tmp_path, capsys):
    write_site(tmp_path / "twin", 6, 1)
    near, far = (ask(capsys, "onboard", run, tmp_path / name)[0]["data"] for name in ("twin", "elsewhere"))
    assert far["distance"]["low"] > near["distance"]["high"] and near["distance"]["median"] < 10
    if far["delta"] is not None:
        assert far["foreign"] == 1 and set(far["foreign_at_sites"]) == set(SITES)
    else:
        assert far["foreign"] is None and any("no threshold" in text for text in far["unknown"])


def test_dice_is_that_of_an_evaluation(run, elsewhere, tmp_path, capsys):
    pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")
    data = ask(capsys, "onboard", run, elsewhere)[0]["data"]
    assert main(["evaluate", str(run), str(elsewhere), "--part", "all", "-o", str(tmp_path / "out")]) == 0
    models = json.loads((tmp_path / "out" / "evaluation.json").read_text())["models"]
    assert set(data["dice"]) == {"super_model", "global", *(f"personal.{site}" for site in SITES)}
    for model, found in data["dice"].items():
        same = models[model]["elsewhere"]["dice"]["mean"]
        assert (found["mean"], found["low"], found["high"]) == pytest.approx((same["mean"], same["low"], same["high"]))
        expected = found["mean"] - data["dice"][data["recommended"]]["mean"]
        assert (found["minus_chosen"] or {"mean": 0})["mean"] == pytest.approx(expected, abs=1e-9)
    means = [found["mean"] for found in data["dice"].values()]
    assert means == sorted(means, reverse=True) and data["dice"][data["recommended"]]["minus_chosen"] is None


def test_masks_may_be_there_for_some_or_for_none(run, elsewhere, capsys):
    for name in ("case_00", "case_03"):
        (elsewhere / "masks" / f"{name}.png").unlink()
    data = ask(capsys, "onboard", run, elsewhere)[0]["data"]
    assert (data["images"], data["labelled"], data["patients"]) == (6, 4, 4) and data["dice"]
    shutil.rmtree(elsewhere / "masks")
    data = ask(capsys, "onboard", run, elsewhere)[0]["data"]
    assert (data["labelled"], data["patients"], data["dice"]) == (0, None, {}) and data["recommended"]


def test_the_text_names_no_file_and_ends_with_the_next_command(run, elsewhere, capsys):
    assert main(["onboard", str(run), str(elsewhere)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("elsewhere: 6 images or slices, 6 files with masks (6 patients); selector statistics\n")
    assert "images nearest to it" in text and "1 is usual for that site's own images" in text and "apart" in text
    assert "(recommended)" in text and "\n  fedsm predict " in text and "case_0" not in text


def test_the_start_is_a_model_that_loads_and_is_scored(run, elsewhere, tmp_path, capsys):
    file = tmp_path / "start.safetensors"
    answer, _ = ask(capsys, "onboard", run, elsewhere, "--start", file)
    assert answer["data"]["start"] == str(file) and "start" in answer["data"]["dice"]
    build_unet(small_settings().task).load_state_dict(load_file(file))
    assert file.stat().st_mode & 0o77 == 0
    assert main(["onboard", str(run), str(elsewhere), "--start", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gradient", "the selector 'gradient' knows no distances"),
        ("extra", "the selector 'extra' knows no distances"),
        ("fedavg", "the super model has no selector"),
        ("local", "the super model has no selector"),
    ],
)
def test_what_cannot_be_told_is_said(kind, words, elsewhere, tmp_path, capsys):
    model = write_super_model(tmp_path, kind)
    assert main(["onboard", str(model), str(elsewhere)]) == 0
    text = capsys.readouterr().out
    assert f"Not known: {'how far' if 'selector ' in words.split(' knows')[0] else 'which'}" in text and words in text
    assert ("cannot be told" in text) == (kind == "local") and "1 is usual" not in text
    assert main(["onboard", str(model), str(elsewhere), "--start", str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err
    assert "--start compares the sites by statistics" in error and len(error.splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_bad_folders_are_one_line(run, elsewhere, tmp_path, capsys):
    def refused(folder):
        assert main(["onboard", str(run), str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "put the images there" in refused(tmp_path)
    (elsewhere / "images" / "case_02.png").unlink()
    assert "case_02.png: has no image" in refused(elsewhere)
    (elsewhere / "masks" / "case_02.png").unlink()
    (elsewhere / "images" / "case_01.png").write_bytes(b"no picture")
    assert "case_01.png: cannot be read" in refused(elsewhere)


def test_a_site_that_took_part_is_pointed_out(run, data_root, capsys):
    assert main(["onboard", str(run), str(data_root / SITES[0])]) == 0
    assert f"a site '{SITES[0]}' took part in training" in capsys.readouterr().err


def told(**dice):
    """An answer with the Dice of some models: mean, and bounds of the difference from `super_model`."""
    models = {
        model: {"mean": mean, "low": None, "high": None, "minus_chosen": bounds and {
            "mean": sum(bounds) / 2, "low": bounds[0], "high": bounds[1], "p": 0.5}}
        for model, (mean, bounds) in dice.items()
    }  # fmt: skip
    return Onboarding(
        site="x", images=9, labelled=9, patients=9, selector="statistics", sites={}, between_sites=None, distance=None,
        delta=None, foreign=None, foreign_at_sites={}, used={"global": 4, "personal.a": 5}, recommended="super_model",
        dice=models, unknown=[], start=None, commands={},
    )  # fmt: skip


def test_a_model_that_is_surely_better_is_named():
    """a by its whole interval; b only in the mean."""
    better = told(a=(0.9, (0.01, 0.03)), b=(0.89, (-0.01, 0.03)), super_model=(0.88, None))
    text = describe(better)
    assert "Better than the recommended model on these images: a." in text and "These are few patients." in text
    assert "Use the super model. Of 9 images it takes personal.a for 5, global for 4." in text
    assert "Better than" not in describe(told(b=(0.89, (0.0, 0.03)), super_model=(0.88, None)))
