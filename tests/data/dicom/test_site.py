"""A folder of DICOM files as a site: found, converted once, kept up to date, and like its NIfTI copy."""

import csv
import json
import stat

import numpy as np
import pytest
from PIL import Image

from app_fedsm.config.build import build_settings
from fedsm.core.errors import UserError
from fedsm.data.check import check_folder, check_root
from fedsm.data.dicom import convert as convert_module
from fedsm.data.dicom.place import ImportPlace
from fedsm.data.dicom.site import images_folder, import_site, is_dicom_site
from fedsm.data.findings import format_reports
from fedsm.data.site_folder import list_pairs, read_pair
from tests.helpers.dicom_files import (
    SECRET,
    US,
    US_CLIP,
    contours,
    dataset,
    plain_text,
    random_volume,
    save,
    segmentation,
    series,
    truncate,
    write_series,
)  # fmt: skip
from tests.helpers.dicom_site import PATIENTS, write_dicom_site, write_nifti_copy

TASK = build_settings("prostate", "fedsm").task


@pytest.fixture
def site(tmp_path):
    write_dicom_site(tmp_path / "site" / "dicom")
    return tmp_path / "site"


@pytest.fixture
def place(tmp_path):
    return ImportPlace(tmp_path / "cache", tmp_path / "state" / "dicom.key")


def test_arrays_of_the_nifti_copy(site, place, tmp_path):
    write_nifti_copy(tmp_path / "copy")
    folder = images_folder(site, "a", TASK, place)
    found = [read_pair(pair, "a", TASK) for pair in list_pairs(folder, "a")]
    copy = [read_pair(pair, "a", TASK) for pair in list_pairs(tmp_path / "copy", "a")]
    assert len(found) == len(copy) == PATIENTS + 1
    for image, mask in copy:
        same = [m for i, m in found if i.dtype == image.dtype and np.array_equal(i, image)]
        assert len(same) == 1 and np.array_equal(same[0], mask) and mask.any()


def test_split_by_patient_and_nothing_that_names_one(site, place):
    folder = images_folder(site, "a", TASK, place)
    with (folder / "patients.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == PATIENTS + 1 and len({row["patient"] for row in rows}) == PATIENTS
    everything = plain_text(folder)
    assert SECRET not in everything and "1.2.826" not in everything, "neither PatientIDs nor UIDs"
    modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
    assert modes <= {0o700, 0o600}
    assert stat.S_IMODE(place.key_file.stat().st_mode) == 0o600
    other = ImportPlace(place.folder.parent / "other", place.folder.parent / "other.key")
    elsewhere = images_folder(site, "a", TASK, other)
    assert not {p.name for p in (folder / "images").iterdir()} & {p.name for p in (elsewhere / "images").iterdir()}


def test_only_what_changed_is_decoded(site, place, monkeypatch):
    decoded = []

    def counting(image, *rest):
        decoded.append(image.uid)
        return real(image, *rest)

    real = convert_module.convert
    monkeypatch.setattr(convert_module, "convert", counting)
    folder = images_folder(site, "a", TASK, place)
    first = {p.name for p in (folder / "images").iterdir()}
    assert len(decoded) == PATIENTS + 1
    images_folder(site, "a", TASK, place)
    assert len(decoded) == PATIENTS + 1, "nothing changed"
    for path in (site / "dicom/ST1/SE1").iterdir():
        path.unlink()
    slices = write_series(site / "dicom/new", random_volume(9), patient="new")
    save(segmentation(slices, {"prostate": random_volume(9) > 400}), site / "dicom/new/seg.dcm")
    images_folder(site, "a", TASK, place)
    now = {p.name for p in (folder / "images").iterdir()}
    assert len(decoded) == PATIENTS + 2 and len(first & now) == PATIENTS and len(now) == PATIENTS + 1
    assert len(json.loads((folder / "index.json").read_text())) == PATIENTS + 1


def test_check_names_each_problem_once(site):
    volume = random_volume(20)
    write_series(site / "dicom/no_mask", volume)
    gap = series(volume)
    for i, one in enumerate(gap[:2] + gap[3:]):
        save(one, site / "dicom/gap" / f"{i}.dcm")
    save(segmentation(gap, {"Prostate": volume > 500}), site / "dicom/gap/mask.dcm")
    short = write_series(site / "dicom/short", volume)
    save(segmentation(short, {"prostate": volume > 500}), site / "dicom/short/mask.dcm")
    truncate(site / "dicom/short/IM0003")
    (site / "dicom/rubbish.dcm").write_bytes(b"nothing")
    (site / "dicom/readme.txt").write_text("about these files")
    report = check_folder(site, "a", TASK)
    by_kind = {finding.kind: finding for finding in report.findings}
    assert report.level == "FAIL"
    files, serieses = by_kind["dicom file"], by_kind["dicom series"]
    assert [entry.split(" (")[0] for entry in files.noted] == ["dicom/rubbish.dcm", "dicom/short/IM0003"]
    assert any("lacks 1 slice" in entry for entry in serieses.noted)
    assert "dicom/no_mask/IM0000" in by_kind["dicom no mask"].noted[0]
    assert report.pairs == PATIENTS + 1, "the good ones are used"
    text = format_reports([report])
    assert "DICOM: 8 images" in text and "MR" in text and "Explicit VR Little Endian" in text
    assert SECRET not in text and "1.2.826" not in text


def test_findings_name_the_sites_own_files(site):
    slices = write_series(site / "dicom/black", np.zeros((4, 20, 20), np.int16), patient="x")
    save(segmentation(slices, {"prostate": np.ones((4, 20, 20), bool)}), site / "dicom/black/mask")
    report = check_folder(site, "a", TASK)
    constant = next(finding for finding in report.findings if finding.kind == "constant")
    assert constant.file == "image of black/IM0000"


@pytest.mark.parametrize("marked", [True, False], ids=["dicom/", "no sub-folder"])
def test_a_folder_is_a_site(tmp_path, marked):
    write_dicom_site(tmp_path / "export" / ("dicom" if marked else ""))
    assert is_dicom_site(tmp_path / "export")
    reports = check_root(tmp_path / "export", TASK)
    assert [report.site for report in reports] == ["export"] and reports[0].pairs == PATIENTS + 1
    if marked:
        assert [report.site for report in check_root(tmp_path, TASK)] == ["export"]


def test_pictures_and_clips(tmp_path, place):
    task = build_settings("breast", "fedsm").task
    rng = np.random.default_rng(0)
    colour = save(dataset(rng.integers(0, 255, (30, 41, 3), np.uint8), US), tmp_path / "s/dicom/p1/IM1")
    deep = dataset(rng.integers(0, 4096, (20, 30), np.uint16), US, "2", BitsStored=12, HighBit=11)
    save(deep, tmp_path / "s/dicom/p2/deep.dcm")
    clip = dataset(rng.integers(0, 255, (4, 20, 30), np.uint8), US_CLIP, "3")
    save(clip, tmp_path / "s/dicom/p3/clip")
    for name, size in (("p1", (41, 30)), ("deep_mask", (30, 20))):
        mask = np.zeros(size[::-1], np.uint8)
        mask[5:9, 5:9] = 255
        Image.fromarray(mask).save(tmp_path / "s/dicom" / f"{name}.png")
    assert colour.is_file()
    folder = images_folder(tmp_path / "s", "s", task, place)
    pairs = [read_pair(pair, "s", task) for pair in list_pairs(folder, "s")]
    assert sorted(image.shape for image, _ in pairs) == [(1, 20, 30, 1), (1, 30, 41, 1)]
    twelve = next(image for image, _ in pairs if image.dtype == np.uint16)
    assert np.array_equal(twelve[0, ..., 0], (deep.pixel_array * (65535 / 4095)).round().astype(np.uint16))
    found = import_site(tmp_path / "s", "s", task, place)
    assert [problem.path.name for problem in found.problems] == ["clip"]


def test_contours_and_holes(tmp_path, place):
    slices = write_series(tmp_path / "s/dicom", random_volume(1, (4, 30, 40)))
    outer, inner = (
        [(4.5, 3.5), (20.5, 3.5), (20.5, 15.5), (4.5, 15.5)],
        [(9.5, 7.5), (12.5, 7.5), (12.5, 9.5), (9.5, 9.5)],
    )
    save(contours(slices, "Prostate ", {1: [outer, inner], 2: [inner]}), tmp_path / "s/dicom/rt")
    folder = images_folder(tmp_path / "s", "s", TASK, place)
    _, mask = read_pair(list_pairs(folder, "s")[0], "s", TASK)
    expected = np.zeros((4, 30, 40), np.uint8)
    expected[1, 4:16, 5:21] = 1
    expected[1, 8:10, 10:13] = 0
    expected[2, 8:10, 10:13] = 1
    assert np.array_equal(mask, expected[..., ::-1]), "the reader's columns run to the patient's right"


def test_masks_that_do_not_fit(tmp_path):
    volume = random_volume(3)
    cases = {
        "shifted": lambda s: segmentation(series(volume, origin=(-19.6, -30.0, 40.0)), {"prostate": volume > 500}),
        "unknown": lambda s: segmentation(s, {"liver": volume > 500}),
        "ours": lambda s: segmentation(s, {"prostate": volume > 500}, Manufacturer="FedSM"),
    }
    said = {}
    for name, made in cases.items():
        slices = write_series(tmp_path / name / "dicom", volume)
        seg = made(slices)
        seg.ReferencedSeriesSequence[0].SeriesInstanceUID = slices[0].SeriesInstanceUID
        if name == "unknown":
            code = seg.SegmentSequence[0].SegmentedPropertyTypeCodeSequence[0]
            code.CodeValue = "10200004"
        save(seg, tmp_path / name / "dicom/mask.dcm")
        found = import_site(tmp_path / name, name, TASK)
        said[name] = [
            (problem.path.name, problem.reason) for problem in found.problems if problem.kind != "dicom no mask"
        ]
        with pytest.raises(UserError, match="no DICOM image with a mask"):
            images_folder(tmp_path / name, name, TASK, None)
    assert said["shifted"] == [("mask.dcm", "is a mask that is not on its image's grid")]
    assert said["unknown"] == [("mask.dcm", "has no segment that the task knows (prostate)")]
    assert said["ours"] == [("mask.dcm", "is a prediction of FedSM, not a mask")]
