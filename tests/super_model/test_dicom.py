"""A DICOM series through `fedsm predict`: the mask of its NIfTI copy, as a DICOM-SEG that other programs read."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from app_fedsm.cli.main import main
from fedsm.data.readers import read
from tests.helpers.dicom_files import (
    AXIAL,
    CT,
    FLIPPED,
    MR,
    SAGITTAL,
    SECRET,
    US,
    US_CLIP,
    dataset,
    enhanced,
    oblique,
    random_volume,
    read_dicom,
    save,
    truncate,
    write_series,
)  # fmt: skip
from tests.helpers.small_model import write_super_model

BIN = Path(sys.executable).parent
AXES = {"axial": AXIAL, "oblique": oblique(), "flipped": FLIPPED, "sagittal": SAGITTAL}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    overrides = ["task.intensity=percentiles", "task.channels=1"]
    return write_super_model(tmp_path_factory.mktemp("model"), overrides=overrides)


@pytest.fixture(scope="module")
def predicted(model, tmp_path_factory):
    """Predictions of series in several orientations, and of their NIfTI copies made by dcm2niix."""
    folder = tmp_path_factory.mktemp("predicted")
    for name, axes in AXES.items():
        write_series(folder / "dicom" / name, random_volume(len(name), (6, 24, 20)), axes=axes, sop_class=MR)
        (folder / "nifti").mkdir(exist_ok=True)
        command = [BIN / "dcm2niix", "-b", "n", "-z", "n", "-f", name, "-o", folder / "nifti", folder / "dicom" / name]
        subprocess.run(command, check=True, capture_output=True)
    assert main(["predict", str(model), str(folder / "dicom"), "-o", str(folder / "out"), "--secondary-capture"]) == 0
    copies = [str(folder / "nifti" / f"{name}.nii") for name in AXES]
    assert main(["predict", str(model), *copies, "-o", str(folder / "copy")]) == 0
    return folder


def rows_of(out):
    with (out / "predictions.csv").open() as f:
        return list(csv.DictReader(f))


def on_one_grid(volume: nibabel.Nifti1Image) -> tuple[np.ndarray, np.ndarray]:
    """A volume's voxels in the orientation nearest to RAS, and their affine."""
    turned = nibabel.as_closest_canonical(volume)
    return np.asarray(turned.dataobj).squeeze(), turned.affine


@pytest.mark.process
@pytest.mark.parametrize("name", AXES)
def test_dcmqi_reads_the_mask_of_the_nifti_route(predicted, tmp_path, name):
    seg = predicted / "out/masks" / name / "series-3.dcm"
    command = [BIN / "segimage2itkimage", "--inputDICOM", seg, "--outputDirectory", tmp_path, "-t", "nifti"]
    subprocess.run(command, check=True, capture_output=True)
    expected, affine = on_one_grid(nibabel.load(predicted / "copy/masks" / f"{name}.nii"))
    assert set(np.unique(expected)) >= {0, 2}
    told = json.loads((tmp_path / "meta.json").read_text())["segmentAttributes"]
    assert [one[0]["SegmentLabel"] for one in told] == ["disc", "cup"]
    for number, values in ((1, (1, 2)), (2, (2,))):
        found, its_affine = on_one_grid(nibabel.load(tmp_path / f"{number}.nii.gz"))
        assert np.array_equal(found > 0, np.isin(expected, values))
        assert np.allclose(its_affine, affine, atol=1e-3)


@pytest.mark.process
def test_same_table_as_the_nifti_copy(predicted):
    skip = ("file", "series_uid", "instance_uid", "seconds")
    dicom, copy = (rows_of(predicted / name) for name in ("out", "copy"))
    plain = {name: [] for name in AXES}
    for row in dicom:
        plain[row["file"].split("/")[0]].append({k: v for k, v in row.items() if k not in skip})
    for name in AXES:
        rows = [row for row in copy if row["file"] == f"{name}.nii"]
        assert plain[name] == [{k: v for k, v in row.items() if k not in skip} for row in rows], "difference 0"


@pytest.mark.process
def test_rows_name_the_instances(predicted):
    for name in ("axial", "oblique", "flipped"):
        uids = [row["instance_uid"] for row in rows_of(predicted / "out") if row["file"].startswith(name)]
        there = [read_dicom(path) for path in (predicted / "dicom" / name).iterdir()]
        there.sort(key=lambda d: d.ImagePositionPatient[2])
        assert uids == [d.SOPInstanceUID for d in there], "from the feet to the head"
    cut = [row for row in rows_of(predicted / "out") if row["file"].startswith("sagittal")]
    assert {row["instance_uid"] for row in cut} == {""} and len({row["series_uid"] for row in cut}) == 1


@pytest.mark.process
def test_the_seg_says_whose_and_by_what(predicted):
    source = read_dicom(next((predicted / "dicom/oblique").iterdir()))
    seg = read_dicom(predicted / "out/masks/oblique/series-3.dcm")
    for name in ("PatientID", "PatientName", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert seg[name].value == source[name].value
    assert seg.SeriesInstanceUID != source.SeriesInstanceUID and seg.Modality == "SEG"
    assert seg.SeriesDescription == "Not for clinical use - FedSM retinal"
    listed = seg.ReferencedSeriesSequence[0]
    assert listed.SeriesInstanceUID == source.SeriesInstanceUID and len(listed.ReferencedInstanceSequence) == 6
    disc, cup = seg.SegmentSequence
    kind = disc.SegmentedPropertyTypeCodeSequence[0]
    assert (kind.CodeValue, kind.CodingSchemeDesignator) == ("81016008", "SCT")
    assert cup.SegmentedPropertyTypeCodeSequence[0].CodingSchemeDesignator == "99FEDSM", "has no code in the task"
    by = disc.SegmentationAlgorithmIdentificationSequence[0]
    assert by.AlgorithmVersion == "0123456789ab" and "model=" in by.AlgorithmParameters
    capture = read_dicom(predicted / "out/captures/oblique/series-3.dcm")
    assert capture.PatientID == source.PatientID and "Not for clinical use" in capture.SeriesDescription
    overlay = np.asarray(Image.open(predicted / "out/overlays/oblique/series-3.png"))
    assert np.array_equal(capture.pixel_array, overlay)


@pytest.mark.process
def test_one_model_for_a_series_if_asked_for(model, predicted, tmp_path):
    given = ["predict", str(model), str(predicted / "dicom"), "--no-overlays", "--volume-selection"]
    for how in ("majority", "slice"):
        assert main([*given, how, "-o", str(tmp_path / how)]) == 0
    used = {}
    for row in rows_of(tmp_path / "majority"):
        used.setdefault(row["file"], set()).add(row["model"])
    assert len(used) == len(AXES) and all(len(models) == 1 for models in used.values())
    folders = (predicted / "out", tmp_path / "slice")
    first, second = ([(row["file"], row["model"]) for row in rows_of(folder)] for folder in folders)
    assert first == second, "the default of a manifest without the entry"
    assert main([*given, "majority", "--blend", "-o", str(tmp_path / "no")]) == 2


@pytest.mark.slow
def test_two_hundred_files_ten_of_them_broken(model, tmp_path, capsys):
    folder, broken = tmp_path / "in", []
    for number in range(7):
        write_series(folder / f"s{number}", random_volume(number, (20, 16, 16)), patient=str(number), sop_class=CT)
    rng = np.random.default_rng(0)
    for number in range(50):
        save(dataset(rng.integers(0, 255, (16, 17), np.uint8), US, str(number)), folder / "us" / f"{number}.dcm")
    save(dataset(rng.integers(0, 255, (3, 16, 17), np.uint8), US_CLIP), folder / "clip")
    save(enhanced(random_volume(3)), folder / "enhanced")
    for number in range(3):
        save(dataset(rng.integers(0, 255, (16, 17, 3), np.uint8), US), folder / f"colour{number}")
    Image.fromarray(rng.integers(0, 255, (16, 17), np.uint8)).save(folder / "picture.png")
    for number in range(4):
        broken.append(truncate(folder / "us" / f"{number}.dcm"))
    broken += [truncate(folder / f"s{number}" / "IM0007", 0.8) for number in range(2)]
    for number in range(3):
        broken.append(folder / f"s5/rubbish{number}.dcm")
        broken[-1].write_bytes(rng.bytes(500))
    broken.append(folder / "s6/IM0000")
    broken[-1].write_bytes(broken[-1].read_bytes()[:300])
    dicom = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"]
    assert len(dicom) == 198
    out = tmp_path / "out"
    assert main(["predict", str(model), str(folder), "-o", str(out), "--no-overlays"]) == 1
    said = capsys.readouterr()
    assert [said.err.count(str(path)) for path in broken] == [1] * 10
    assert len(said.err.strip().splitlines()) == 10 and "10 of " in said.out
    rows = rows_of(out)
    assert len(rows) == 7 * 20 - 3 + 46 + 3 + 6 + 3 + 1, "every good slice, picture and frame"
    named = {row["instance_uid"] for row in rows}
    good = {read_dicom(path).SOPInstanceUID for path in dicom if path not in broken}
    assert named == good | {""}
    assert SECRET not in said.err + said.out


def test_pictures_keep_their_frames(model, tmp_path):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 255, (3, 20, 30), np.uint8)
    save(dataset(pixels, US_CLIP), tmp_path / "in/clip.dcm")
    for number, frame in enumerate(pixels):
        save(dataset(frame, US), tmp_path / f"in/{number}.dcm")
        Image.fromarray(frame).save(tmp_path / f"in/{number}p.png")
    assert main(["predict", str(model), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--no-overlays"]) == 0
    clip = read_dicom(tmp_path / "out/masks/clip.dcm")
    assert "FrameOfReferenceUID" not in clip and clip.NumberOfFrames == 6
    references = [
        int(frame.DerivationImageSequence[0].SourceImageSequence[0].ReferencedFrameNumber)
        for frame in clip.PerFrameFunctionalGroupsSequence
    ]
    assert references == [1, 2, 3, 1, 2, 3]
    for number in range(3):
        picture = read(tmp_path / f"out/masks/{number}p.png", mask=True)[0, ..., 0]
        seg = read_dicom(tmp_path / f"out/masks/{number}.dcm").pixel_array
        assert np.array_equal(seg[0], picture > 0) and np.array_equal(seg[1], picture == 2)
    picture = ["predict", str(model), str(tmp_path / "in/1p.png"), "-o", str(tmp_path / "no"), "--secondary-capture"]
    assert main(picture) == 2
    rows = {row["file"]: row for row in rows_of(tmp_path / "out")}
    assert rows["1.dcm"]["disc_pixels"] == rows["1p.png"]["disc_pixels"] and rows["1p.png"]["series_uid"] == ""
