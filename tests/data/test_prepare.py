"""What all sources share: refusals that name the remedy, nothing half written, and the list."""

import builtins

import numpy as np
import pytest

from fedsm.core.errors import UserError
from fedsm.data import prepare as package
from fedsm.data.prepare import SOURCES, describe_sources, prepare
from fedsm.data.prepare.source import files_below
from fedsm.data.site_folder import list_pairs
from tests.helpers.fundus_sources import drishti, fundus, refuge, rim_one, save

NAMES = [
    "drishti-gs1", "riga-binrushed", "riga-magrabia", "riga-messidor", "rim-one", "refuge",
    "i2cvb", "msd-task05", "nci-isbi-3t", "nci-isbi-dx", "promise12", "prostatex",
]  # fmt: skip


def test_the_list_has_all_twelve_and_what_is_unchecked():
    text = describe_sources()
    assert list(SOURCES) == NAMES and [s.task for s in SOURCES.values()] == ["retinal"] * 6 + ["prostate"] * 6
    for source in SOURCES.values():
        assert all(part in text for part in (source.where, source.terms, source.rule, source.checked))
        assert source.layout.splitlines()[0] in text and "not checked against a real download" in source.checked


@pytest.mark.parametrize("name", NAMES)
def test_another_layout_is_refused_with_what_was_looked_for(name, tmp_path):
    save(fundus(), tmp_path / "raw" / "pictures" / "photo.png")
    with pytest.raises(UserError, match=rf"{name}: no .* below .*raw; unpack the official download .*--list"):
        prepare(name, tmp_path / "raw", tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_bad_arguments(tmp_path):
    with pytest.raises(UserError, match="unknown source 'drive'; known: drishti-gs1, .*prostatex"):
        prepare("drive", tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="raw is not a folder; get the data: .*http"):
        prepare("refuge", tmp_path / "raw", tmp_path / "out")
    with pytest.raises(UserError, match="choose majority or first"):
        prepare("rim-one", tmp_path, tmp_path / "out", readers="last")
    with pytest.raises(UserError, match="lies inside .*choose an output folder outside"):
        prepare("refuge", tmp_path, tmp_path / "out")


def test_incomplete_pairs_are_named(tmp_path):
    refuge(tmp_path / "refuge")
    (tmp_path / "refuge/REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp").unlink()
    with pytest.raises(UserError, match=r"V0001.jpg has no mask in Disc_Cup_Masks; unpack"):
        prepare("refuge", tmp_path / "refuge", tmp_path / "out")
    drishti(tmp_path / "drishti")
    next((tmp_path / "drishti").rglob("drishtiGS_008_cup*")).unlink()
    with pytest.raises(UserError, match=r"drishtiGS_008.png has no cup map"):
        prepare("drishti-gs1", tmp_path / "drishti", tmp_path / "out")
    rim_one(tmp_path / "rim")
    save(fundus(), tmp_path / "rim" / "copy" / "N-10-R.jpg")
    with pytest.raises(UserError, match=r"N-10-R.jpg and .*N-10-R.jpg are the same case; keep one"):
        prepare("rim-one", tmp_path / "rim", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unreadable_and_unequal_files_are_named(tmp_path):
    refuge(tmp_path / "raw")
    mask = tmp_path / "raw/REFUGE-Test-GT/Disc_Cup_Masks/G/T0001.bmp"
    save(np.full((40, 40), 255, np.uint8), mask)
    with pytest.raises(UserError, match=r"T0001.jpg and its annotation differ in size"):
        prepare("refuge", tmp_path / "raw", tmp_path / "out")
    mask.write_bytes(b"not a picture")
    with pytest.raises(UserError, match=r"T0001.bmp cannot be read .*download it again"):
        prepare("refuge", tmp_path / "raw", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_site_with_files_is_never_touched(tmp_path):
    refuge(tmp_path / "raw")
    site = tmp_path / "out" / "refuge"
    save(fundus(), site / "images" / "mine.png")
    with pytest.raises(UserError, match="refuge already holds files; nothing is overwritten"):
        prepare("refuge", tmp_path / "raw", tmp_path / "out")
    assert [p.name for p in files_below(tmp_path / "out")] == ["mine.png"]


def test_a_stopped_run_leaves_nothing_and_a_killed_one_no_site(tmp_path):
    refuge(tmp_path / "raw")
    out = tmp_path / "deep" / "out"
    seen = []

    def stop(n):
        seen.append([p.relative_to(out).parts[0] for p in out.rglob("*.png")])
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("refuge", tmp_path / "raw", out, progress=stop)
    assert seen == [[".refuge.partial"], [".refuge.partial"] * 2] and not (tmp_path / "deep").exists()

    left = out / ".refuge.partial" / "refuge" / "images" / "old.jpg"  # what SIGKILL would leave
    save(fundus(), left)
    (out / "refuge").mkdir()
    assert prepare("refuge", tmp_path / "raw", out) == 4
    assert [p.name for p in out.iterdir()] == ["refuge"]
    assert [p.stem for p in list_pairs(out / "refuge", "refuge")] == ["T0001", "V0001", "g0001", "n0001"]


def test_simple_itk_is_asked_for_when_needed(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "SimpleITK":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("Case00.mhd", "Case00_segmentation.mhd"):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).touch()
    with pytest.raises(UserError, match=r"promise12 needs SimpleITK; pip install 'fedsm\[prepare\]'"):
        prepare("promise12", tmp_path / "raw", tmp_path / "out")
    refuge(tmp_path / "refuge")
    assert prepare("refuge", tmp_path / "refuge", tmp_path / "out") == 4, "pictures need nothing more"


def test_an_unwritable_folder_is_one_line(tmp_path):
    refuge(tmp_path / "raw")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="refuge: .*file.*check permissions"):
        package.prepare("refuge", tmp_path / "raw", tmp_path / "file" / "out")


def test_links_are_followed_but_not_in_circles(tmp_path):
    save(fundus(), tmp_path / "elsewhere" / "a.png")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "raw")
    assert [p.name for p in files_below(tmp_path / "raw")] == ["a.png"]
