"""Fundus sources: folders in the layout of each download, circles drawn by hand, masks compared with the circles."""

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.data.prepare import prepare
from fedsm.data.prepare.pictures import majority
from fedsm.data.site_folder import list_pairs, read_pair
from tests.helpers.fundus_sources import CUP, DISC, LINE, circle, drishti, fundus, refuge, rim_one, save


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()


def read_mask(out: Path, site: str, stem: str) -> np.ndarray:
    return np.asarray(Image.open(out / site / "masks" / f"{stem}.png"))


def assert_mask(mask: np.ndarray, disc: np.ndarray, cup: np.ndarray) -> None:
    assert set(np.unique(mask)) == {0, 1, 2}
    assert iou(mask > 0, disc) > 0.95 and iou(mask == 2, cup) > 0.95


def check(out: Path, site: str) -> int:
    task = build_settings("retinal", "fedsm").task
    return len([read_pair(pair, site, task) for pair in list_pairs(out / site, site)])


def test_drishti_takes_what_three_of_four_readers_marked(tmp_path):
    drishti(tmp_path / "raw")
    assert prepare("drishti-gs1", tmp_path / "raw", tmp_path / "out") == 3 == check(tmp_path / "out", "drishti-gs1")
    mask = read_mask(tmp_path / "out", "drishti-gs1", "drishtiGS_001")
    assert np.array_equal(mask, circle(DISC + 4).astype(np.uint8) + circle(CUP + 4))
    with pytest.raises(UserError, match="'first' is not possible; choose majority"):
        prepare("drishti-gs1", tmp_path / "raw", tmp_path / "other", readers="first")


@pytest.mark.parametrize(("readers", "more"), [("majority", 0), ("first", 5)])
def test_rim_one_left_view_of_the_average_or_of_the_first_reader(tmp_path, readers, more):
    rim_one(tmp_path / "raw")
    assert prepare("rim-one", tmp_path / "raw", tmp_path / "out", readers) == 3 == check(tmp_path / "out", "rim-one")
    mask = read_mask(tmp_path / "out", "rim-one", "G-1-L")
    assert mask.shape == (128, 96)
    assert_mask(mask, circle(40 + more, (48, 64), (128, 96)), circle(18 + more, (48, 64), (128, 96)))


def test_refuge_values_are_mapped_and_illustrations_left_out(tmp_path):
    refuge(tmp_path / "raw")
    steps = []
    assert prepare("refuge", tmp_path / "raw", tmp_path / "out", progress=steps.append) == 4 == sum(steps)
    assert check(tmp_path / "out", "refuge") == 4
    for stem in ("g0001", "n0001", "V0001", "T0001"):
        assert np.array_equal(read_mask(tmp_path / "out", "refuge", stem), circle(DISC).astype(np.uint8) + circle(CUP))
    raw = tmp_path / "raw/Training400/Glaucoma/g0001.jpg"
    assert (tmp_path / "out/refuge/images/g0001.jpg").read_bytes() == raw.read_bytes(), "pictures are copied"


def draw(picture: np.ndarray, *outlines: tuple[float, tuple[int, int]], colour=(20, 20, 20), gap: bool = False):
    """Circles of the given radius to the middle of the line; a gap opens the first."""
    image = Image.fromarray(picture.copy())
    for i, (radius, (x, y)) in enumerate(outlines):
        outer = radius + (LINE - 1) / 2  # pillow's box includes its last pixel
        span = (20, 350) if gap and i == 0 else (0, 360)
        ImageDraw.Draw(image).arc((x - outer, y - outer, x + outer, y + outer), *span, fill=colour, width=LINE)
    return np.asarray(image)


def riga(folder: Path, number: int, ending: str, disc=(50,) * 6, cup=(24,) * 6) -> np.ndarray:
    picture = fundus(number)
    save(picture, folder / f"image{number}prime.{ending}")
    for reader, radii in enumerate(zip(disc, cup, strict=True), 1):
        name = "Image" if "Male" in folder.name and reader == 1 else "image"
        save(draw(picture, *((r, (80, 80)) for r in radii)), folder / f"{name}{number}-{reader}.{ending}")
    return picture


@pytest.fixture
def itk():
    return pytest.importorskip("SimpleITK", reason="RIGA's outlines need SimpleITK: pip install '.[prepare]'")


def test_riga_binrushed_majority_and_first_reader(itk, tmp_path):
    folder = tmp_path / "raw" / "BinRushed" / "BinRushed1-Corrected"
    riga(folder, 1, "jpg", disc=(60, 50, 50, 50, 42, 42), cup=(34, 24, 24, 24, 18, 18))
    riga(folder, 2, "jpg", disc=(60, 60, 60, 42, 42, 42))  # 3 of 6 is a tie: outside
    riga(tmp_path / "raw" / "BinRushed" / "BinRushed2", 1, "jpg")
    save(fundus(), tmp_path / "raw" / "BinRushed" / "BinRushed1" / "image1-1.jpg")  # replaced, without a picture
    riga(tmp_path / "raw" / "MESSIDOR", 1, "tif")
    assert (
        prepare("riga-binrushed", tmp_path / "raw", tmp_path / "out") == 3 == check(tmp_path / "out", "riga-binrushed")
    )
    stem = "BinRushed1-Corrected_image"
    assert_mask(read_mask(tmp_path / "out", "riga-binrushed", f"{stem}1"), circle(50), circle(24))
    assert_mask(read_mask(tmp_path / "out", "riga-binrushed", f"{stem}2"), circle(42), circle(24))
    assert prepare("riga-binrushed", tmp_path / "raw", tmp_path / "first", "first") == 3
    assert_mask(read_mask(tmp_path / "first", "riga-binrushed", f"{stem}1"), circle(60), circle(34))


def test_riga_magrabia_capitals_and_the_case_without_a_picture(itk, tmp_path):
    riga(tmp_path / "raw/Magrabia/MagrabiaMale", 1, "tif")
    riga(tmp_path / "raw/Magrabia/MagrabiFemale", 1, "tif")
    for name in ("image48-1.tif", "Image48-1.tif"):
        save(fundus(), tmp_path / "raw/Magrabia/MagrabiFemale" / name)
    assert prepare("riga-magrabia", tmp_path / "raw", tmp_path / "out") == 2 == check(tmp_path / "out", "riga-magrabia")
    assert_mask(read_mask(tmp_path / "out", "riga-magrabia", "MagrabiaMale_image1"), circle(50), circle(24))


def test_riga_messidor_broken_faint_and_touching_lines(itk, tmp_path, caplog):
    folder = tmp_path / "raw" / "MESSIDOR"
    picture = riga(folder, 1, "tif")
    save(draw(picture, (50, (80, 80)), (24, (80, 104))), folder / "image1-1.tif")  # the cup touches the disc's line
    save(draw(picture, (50, (80, 80)), (24, (80, 80)), colour=(175, 92, 52)), folder / "image1-2.tif")  # faint
    save(draw(picture, (50, (80, 80)), (24, (80, 80)), gap=True), folder / "image1-3.tif")  # the disc's line is open
    with caplog.at_level(logging.WARNING):
        assert (
            prepare("riga-messidor", tmp_path / "raw", tmp_path / "out")
            == 1
            == check(tmp_path / "out", "riga-messidor")
        )
    assert "image1-3.tif" in caplog.text and "image1-1.tif" not in caplog.text and "image1-2.tif" not in caplog.text
    assert_mask(read_mask(tmp_path / "out", "riga-messidor", "MESSIDOR_image1"), circle(50), circle(24))
    prepare("riga-messidor", folder, tmp_path / "first", "first")  # RAW may be the origin's own folder
    touching = circle(24, (80, 104))
    assert_mask(read_mask(tmp_path / "first", "riga-messidor", "MESSIDOR_image1"), circle(50) | touching, touching)
    for reader in (4, 5):
        (folder / f"image1-{reader}.tif").unlink()
    (folder / "image1-6.tif").unlink()
    with pytest.raises(UserError, match="image1prime.tif has 2 of 6 copies"):
        prepare("riga-messidor", tmp_path / "raw", tmp_path / "none")


def test_majority_by_hand():
    """Votes 3, 2, 1, 0 of 4: only 3 is more than half. Votes 2 of 3 win."""
    four = [np.array([1, 1, 1, 0], bool), np.array([1, 1, 0, 0], bool), np.array([1, 0, 0, 0], bool), np.zeros(4, bool)]
    assert majority(four).tolist() == [True, False, False, False]
    assert majority(four[:3]).tolist() == [True, True, False, False]
