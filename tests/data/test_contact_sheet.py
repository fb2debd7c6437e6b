"""Contact sheets: what a person sees of a site at one glance."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.data import contact_sheet
from fedsm.data.check import check_folder
from fedsm.data.contact_sheet import CAPTION, COLOURS, COLUMNS, GAP, HEADER, TILE, outline, write_contact_sheet
from tests.helpers.spoiled import PROSTATE, TASK, save, spoil


def test_outline():
    mask = np.zeros((6, 6), bool)
    mask[1:5, 1:5] = True
    assert outline(mask).sum() == 12 and not outline(mask)[2:4, 2:4].any()
    assert not outline(np.ones((4, 4), bool)).any()


def colours_of(path: Path) -> dict[tuple, int]:
    """How often each colour occurs below the title."""
    with Image.open(path) as sheet:
        tiles = sheet.crop((0, HEADER, *sheet.size))
        return {colour: n for n, colour in tiles.getcolors(1 << 24)}


def test_contact_sheet(site):
    """12 of 14 images in 3 rows of 4, with both labels' outlines; also when names are odd and files are bad."""
    (site / "images" / "case_00.png").rename(site / "images" / "眼底 größe\udcff.png")
    (site / "masks" / "case_00.png").rename(site / "masks" / "眼底 größe\udcff.png")
    spoil(site, "truncated")
    path = write_contact_sheet(site, "Krankenhaus Süd", TASK, site / "new" / "sheet.png")
    with Image.open(path) as sheet:
        assert sheet.size == (COLUMNS * (TILE + GAP) + GAP, HEADER + 3 * (TILE + CAPTION + GAP))
    found = colours_of(path)
    assert found[COLOURS[0]] > found[COLOURS[1]] > 500, "disc and cup"
    assert COLOURS[3] in found, "the tile that says why"


def test_contact_sheet_of_volumes_shows_the_largest_slice(volumes):
    """9 x 10 of 16 x 20 voxels, enlarged to 20 -> TILE: the outline is as long as that slice's and no other's."""
    path = write_contact_sheet(volumes, "v", PROSTATE, volumes / "sheet.png", count=1)
    scale = TILE / 20
    assert colours_of(path)[COLOURS[0]] == pytest.approx(2 * (9 + 10) * scale, rel=0.05)


def test_contact_sheet_shows_what_was_noted(site, monkeypatch):
    """Of 14 images two are noted: a sheet of three gives half of its room, one tile, to them."""
    drawn = []
    draw = contact_sheet._draw_tile
    monkeypatch.setattr(contact_sheet, "_draw_tile", lambda pair, *rest: drawn.append(pair.stem) or draw(pair, *rest))
    for name in ("case_04", "case_09"):
        save(site / "masks" / f"{name}.png", np.zeros((40, 40), np.uint8))
    report = check_folder(site, "a", TASK)
    path = write_contact_sheet(site, "a", TASK, site / "sheet.png", count=3, noted=report.noted)
    assert drawn == ["case_00", "case_04", "case_13"]
    assert contact_sheet._NOTED in colours_of(path)
    drawn.clear()
    write_contact_sheet(site, "a", TASK, site / "sheet.png", count=3)
    assert drawn == ["case_00", "case_06", "case_13"]


def test_contact_sheet_without_images_or_place(tmp_path):
    with Image.open(write_contact_sheet(tmp_path, "empty", TASK, tmp_path / "sheet.png")) as sheet:
        assert sheet.height == HEADER
    with pytest.raises(UserError, match="cannot be written"):
        write_contact_sheet(tmp_path, "empty", TASK, tmp_path / "sheet.png" / "below.png")
