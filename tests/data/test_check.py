"""Every kind of bad file becomes a finding with level, site, file and remedy; nothing stops the check."""

import json

import nibabel
import numpy as np
import pytest
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.data import check_pair, contact_sheet
from fedsm.data.check import check_folder, check_root
from fedsm.data.contact_sheet import write_contact_sheet
from fedsm.data.dataset import load_site
from fedsm.data.findings import first_failure, format_reports, warnings_of
from fedsm.data.site_folder import list_pairs, read_pair, suggest_label
from tests.helpers.small_jobs import small_settings, write_site
from tests.helpers.spoiled import PROSTATE, RNG, TASK, assert_found, save, spoil, write_volume


@pytest.mark.parametrize(
    ("how", "kind", "names"),
    [
        ("no mask", "no mask", ["images/case_01.png"]),
        ("no image", "no image", ["masks/case_01.png"]),
        ("two of a stem", "twins", ["case_01.png", "case_01.bmp"]),
        ("truncated", "unreadable", ["images/case_01.png"]),
        ("0 bytes", "unreadable", ["masks/case_01.png", "0 bytes"]),
        ("text", "unreadable", ["images/case_01.png"]),
        ("symlink loop", "no file", ["images/case_01.png", "leads to itself"]),
        ("broken link", "no file", ["images/case_01.png"]),
        ("folder", "no file", ["images/case_01.png"]),
        ("pipe", "no file", ["images/case_01.png"]),
        ("other size", "size", ["images/case_01.png", "40 x 40", "20 x 10"]),
        ("colour mask", "colour", ["masks/case_01.png"]),
        ("other value", "values", ["masks/case_01.png", "7; the task knows 0, 1, 2"]),
        ("empty mask", "empty", ["masks/case_01.png"]),
        ("constant", "constant", ["images/case_01.png"]),
        ("black", "dark", ["images/case_01.png"]),
        ("white", "bright", ["images/case_01.png"]),
        ("8 bit in 16", "8 bit", ["images/case_01.png"]),
        ("jpeg", "format", ["images/case_01.png", "JPEG"]),
        ("other files", "passed over", ["images/notes.txt"]),
    ],
)
def test_spoiled_picture_is_the_one_finding(site, how, kind, names, monkeypatch):
    spoil(site, how)
    report = check_folder(site, "hospital-a", TASK)
    assert_found(report, kind, *names)
    assert len(report.findings) == 1, report.findings
    monkeypatch.setattr(contact_sheet, "TILE", 32)
    write_contact_sheet(site, "hospital-a", TASK, site / "sheet.png", count=14)
    if report.level == "FAIL":
        with pytest.raises(UserError):
            load_site(site, "hospital-a", small_settings())
    else:
        assert len(load_site(site, "hospital-a", small_settings())["test"]), "what is no FAIL must train"


MOVED = np.diag([0.5, 0.5, 3, 1.0])
MOVED[0, 3] = 2


@pytest.mark.parametrize(
    ("part", "change", "kind", "words"),
    [
        ("images", lambda a: np.stack([a, a], -1), "channels", "(2)"),
        ("images", lambda a: np.stack([a, a, a], -1), "channels", "(3)"),
        ("masks", lambda a: np.stack([a, a], -1), "unreadable", "2D or 3D"),
        ("images", lambda a: np.where(a == a.max(), np.nan, a), "not finite", "v1"),
        ("images", lambda a: np.where(a == a.max(), np.inf, a), "not finite", "v1"),
        ("masks", lambda a: np.where(a == 1, np.nan, a).astype(np.float32), "not finite", "v1"),
        ("images", lambda a: a.astype(np.complex64), "unreadable", "complex64"),
        ("images", lambda a: a * 0, "constant", "v1"),
        ("masks", lambda a: a[:, :, :3], "size", "3 slices"),
        ("masks", lambda a: (a, np.diag([0.5, 0.6, 3, 1])), "grid", "0.5 x 0.6 x 3 mm"),
        ("masks", lambda a: (a, MOVED), "grid", "2 mm apart"),
    ],
    ids=[
        "2 channels",
        "3 channels",
        "4D mask",
        "NaN",
        "inf",
        "NaN mask",
        "complex",
        "constant",
        "slices",
        "spacing",
        "origin",
    ],
)
def test_spoiled_volume_is_the_one_finding(volumes, part, change, kind, words):
    path = volumes / part / "v1.nii.gz"
    changed = change(np.asanyarray(nibabel.load(path).dataobj))
    write_volume(path, *(changed if isinstance(changed, tuple) else (changed,)))
    report = check_folder(volumes, "hospital-v", PROSTATE)
    assert_found(report, kind, "v1.nii.gz", words)
    assert len(report.findings) == 1, report.findings


@pytest.mark.parametrize("content", [b"", b"no volume", b"\x1f\x8b no gzip"])
def test_no_nifti(volumes, content):
    (volumes / "masks" / "v1.nii.gz").write_bytes(content)
    assert_found(check_folder(volumes, "hospital-v", PROSTATE), "unreadable", "masks/v1.nii.gz")


def test_volumes_pass_also_when_a_mask_is_stored_flipped(volumes):
    """The same voxels, listed from right to left: the reader turns both, the grids are the same."""
    path = volumes / "masks" / "v1.nii.gz"
    array, affine = np.asanyarray(nibabel.load(path).dataobj), np.diag([-0.5, 0.5, 3, 1])
    affine[0, 3] = 0.5 * (array.shape[0] - 1)
    write_volume(path, array[::-1], affine)
    report = check_folder(volumes, "hospital-v", PROSTATE)
    assert report.level == "PASS", report.findings
    assert format_reports([report]).startswith("PASS hospital-v: 12 pairs, 16x20, 5 slices, prostate 8.2 %\n")


def test_clean_site_passes_with_any_names(site):
    """Spaces and letters of any alphabet, hidden files, a link to a file: all fine. Progress counts the pairs."""
    for i, name in enumerate(["with space", "größe", "眼底", "глаз"]):
        for part in ("images", "masks"):
            (site / part / f"case_{i:02d}.png").rename(site / part / f"{name}.png")
    (site / "images" / ".DS_Store").write_text("x")
    (site / "images" / "case_05.png").rename(site / "elsewhere.png")
    (site / "images" / "case_05.png").symlink_to(site / "elsewhere.png")
    done = []
    report = check_folder(site, "hospital-a", TASK, done.append)
    assert (report.level, report.pairs, report.findings) == ("PASS", 14, [])
    assert sum(done) == 14
    assert format_reports([report]).startswith("PASS hospital-a: 14 pairs, 40x40, disc ")
    assert report.summary["labels"]["disc"] > report.summary["labels"]["cup"] > 0.01
    json.dumps(report.summary)


def test_each_file_is_decoded_once(site, monkeypatch):
    opened = []
    read = check_pair.read
    monkeypatch.setattr(check_pair, "read", lambda path, *rest: opened.append(path) or read(path, *rest))
    check_folder(site, "hospital-a", TASK)
    assert len(opened) == len(set(opened)) == 28


def test_channels_that_the_task_cannot_use(site):
    report = check_folder(site, "a", TASK.replace(channels=2))
    assert_found(report, "channels", "(14)", "images/case_00.png (3)", "and 9 more")
    assert report.level == "FAIL"


def test_missing_and_empty_folders(tmp_path):
    (tmp_path / "images").mkdir()
    report = check_folder(tmp_path, "a", TASK)
    assert_found(report, "folder", "masks/")
    (tmp_path / "masks").mkdir()
    report = check_folder(tmp_path, "a", TASK)
    assert_found(report, "no images", "images/")
    assert_found(report, "too few", "0")
    assert report.summary == {} and "FAIL a: 0 pairs" in format_reports([report])


@pytest.mark.parametrize(("count", "kind", "level"), [(2, "too few", "FAIL"), (3, "few", "WARN"), (11, "few", "WARN")])
def test_number_of_patients(tmp_path, count, kind, level):
    write_site(tmp_path, count, 0)
    report = check_folder(tmp_path, "a", TASK)
    assert_found(report, kind, str(count))
    assert report.level == level


def test_empty_masks_and_class_balance(site):
    masks = sorted((site / "masks").iterdir())
    for path in masks:
        save(path, np.pad(np.ones((39, 39), np.uint8), ((0, 1), (0, 1))))
    assert_found(check_folder(site, "a", TASK), "balance", "disc has 95.1 %", "cup has 0.0 %")
    for path in masks[:7]:
        save(path, np.zeros((40, 40), np.uint8))
    report = check_folder(site, "a", TASK)
    assert_found(report, "empty", "(7)", "case_00.png", "case_04.png", "and 2 more")
    assert "case_05.png" not in format_reports([report]), "five files are named"
    assert report.summary["empty_masks"] == 7
    for path in masks[7:]:
        save(path, np.zeros((40, 40), np.uint8))
    report = check_folder(site, "a", TASK)
    assert_found(report, "all empty", "all 14 masks")
    assert len(report.findings) == 1


def test_copies_inside_a_site(site):
    """By pixels, not bytes. The same mask: a WARN. Two masks for one image: a FAIL."""
    for part in ("images", "masks"):
        Image.open(site / part / "case_01.png").save(site / part / "again.bmp")
    assert_found(check_folder(site, "a", TASK), "repeated", "images/case_01.png", "images/again.bmp")
    Image.open(site / "masks" / "case_02.png").save(site / "masks" / "again.bmp")
    report = check_folder(site, "a", TASK)
    assert_found(report, "conflict", "images/case_01.png", "images/again.bmp")
    assert report.level == "FAIL"


def test_gif_masks(site):
    """Greys are safe. With colours the labels are the palette's numbers, which writers change: a person must look."""
    path = site / "masks" / "case_01.gif"
    labels = np.asarray(Image.open(site / "masks" / "case_01.png"))
    (site / "masks" / "case_01.png").unlink()
    save(path, labels)
    assert check_folder(site, "a", TASK).findings == []
    picture = Image.fromarray(labels).convert("P")
    picture.putdata(labels.flatten().tolist())
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    picture.save(path)
    report = check_folder(site, "a", TASK)
    assert_found(report, "palette", "masks/case_01.gif")
    assert (report.level, len(report.findings)) == ("WARN", 1)


def test_a_volume_with_a_picture_as_mask(site):
    """Nothing says how they lie to each other: a person must look."""
    (site / "images" / "case_01.png").unlink()
    write_volume(site / "images" / "case_01.nii.gz", RNG.integers(0, 255, (40, 40, 1), np.uint8))
    report = check_folder(site, "a", TASK)
    assert_found(report, "mixed", "masks/case_01.png")
    assert report.level == "WARN"


def test_8_bit_values_in_a_volume_are_no_finding(site):
    """int16 is what scanners write; only 16-bit pictures are divided by 65535."""
    for part in ("images", "masks"):
        (site / part / "case_01.png").unlink()
    write_volume(site / "images" / "case_01.nii.gz", RNG.integers(0, 255, (40, 40, 3)).astype(np.int16))
    write_volume(site / "masks" / "case_01.nii.gz", np.ones((40, 40, 3), np.uint8))
    assert check_folder(site, "a", TASK).findings == []


def test_run_and_check_say_the_same(site):
    spoil(site, "truncated")
    spoil(site.parent / "hospital-a", "other files")
    report = check_folder(site, "hospital-a", TASK)
    line = str(first_failure([report], "fedsm data check X --task T"))
    assert line.startswith("site 'hospital-a': cannot be read: images/case_01.png (") and "replace it" in line
    assert "more" not in line
    (site / "masks" / "case_02.png").unlink()
    line = str(first_failure([check_folder(site, "hospital-a", TASK)], "fedsm data check X --task T"))
    assert "image without mask: images/case_02.png" in line
    assert line.endswith("(1 more; see `fedsm data check X --task T`)")
    assert warnings_of([report]) == ["WARN hospital-a: unsupported file, ignored"]


def test_sites_are_compared(tmp_path):
    for i in range(3):
        write_site(tmp_path / f"site-{i + 1}", 12, i)
    reports = check_root(tmp_path, TASK)
    assert [(r.site, r.level) for r in reports] == [("site-1", "PASS"), ("site-2", "PASS"), ("site-3", "PASS")]
    assert format_reports(reports).endswith("3 sites: 3 PASS")
    for part in ("images", "masks"):
        Image.open(tmp_path / "site-1" / part / "case_03.png").save(tmp_path / "site-3" / part / "copy.bmp")
    for path in (tmp_path / "site-2" / "images").iterdir():
        save(path, np.asarray(Image.open(path)) // 8)
    reports = check_root(tmp_path, TASK)
    assert_found(reports[0], "elsewhere", "images/case_03.png", "site-3/images/copy.bmp")
    assert_found(reports[2], "elsewhere", "images/copy.bmp", "site-1/images/case_03.png")
    assert_found(reports[1], "far", "against median")
    assert [len(r.findings) for r in reports] == [1, 1, 1]


def test_roots(tmp_path):
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError):
            check_root(root, TASK)
    write_site(tmp_path / "bad name", 12, 0)
    (report,) = check_root(tmp_path, TASK)
    assert_found(report, "site name", "bad name")
    assert_found(report, "one site")
    (tmp_path / "notes").mkdir()
    assert_found(check_root(tmp_path, TASK)[1], "folder", "images/", "masks/")  # `fedsm run` takes it for a site too
    (report,) = check_root(tmp_path / "bad name", TASK)
    assert (report.site, report.level) == ("bad name", "PASS"), "a hospital checks its own folder"


def test_a_mask_value_outside_the_labels_suggests_the_label(site):
    """Masks of 0 and 255, a task that says 1: both the check and the loader say what to write."""
    task = TASK.replace(labels={"lesion": [1]}, background=[0])
    for path in sorted((site / "masks").iterdir()):
        mask = np.asarray(Image.open(path)) > 0
        Image.fromarray(mask.astype(np.uint8) * 255).save(path)
    report = check_folder(site, "a", task)
    (finding,) = [f for f in report.findings if f.what.startswith("mask values")]
    assert finding.remedy.startswith("write `lesion: [255]` under `labels` of the task if 255 is lesion")
    pair = list_pairs(site, "a")[0]
    with pytest.raises(UserError, match=r"holds the value 255.*write `lesion: \[255\]`"):
        read_pair(pair, "a", task)
    right = task.replace(labels={"lesion": [255]})
    assert check_folder(site, "a", right).level != "FAIL", "the remedy is one"


def test_nothing_is_suggested_where_it_would_be_a_guess():
    task = TASK.replace(labels={"disc": [1], "cup": [2]}, background=[0])
    assert suggest_label(task, {0, 1, 255}) == "write `cup: [255]` under `labels` of the task if 255 is cup"
    for values in ({0, 255}, {0, 1, 2, 255}, {0, 1, 7, 8}, {0, 1, 2}):
        assert suggest_label(task, values) is None
