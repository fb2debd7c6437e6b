"""A DICOM series that is uploaded: as its files or as a zip, back as DICOM-SEG; what is broken is a 4xx in words."""

import io
import logging
import os
import sys
import zipfile

import nibabel
import numpy as np
import pydicom
import pytest
import requests
from pydicom.uid import DeflatedExplicitVRLittleEndian

from fedsm.data.dicom.image import load
from fedsm.data.dicom.scan import scan
from fedsm.data.dicom.segmentation import LabelMasks, add_segmentation
from fedsm.serve.limits import MIB, ServeLimits
from fedsm.serve.service import Service
from fedsm.super_model.model import SuperModel
from tests.helpers.dicom_files import (
    MR,
    SAGITTAL,
    SECRET,
    US,
    US_CLIP,
    dataset,
    oblique,
    random_volume,
    series,
    write_series,
)  # fmt: skip
from tests.helpers.service import picture, serving
from tests.helpers.small_model import write_super_model

LIMITS = ServeLimits(upload=4 * MIB, files=20, volume=32 * MIB, pixels=10_000_000)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return SuperModel.load(write_super_model(folder, task="prostate", overrides=["task.selector_net={}"]), "cpu")


@pytest.fixture(scope="module")
def address(model):
    with serving(Service(model, LIMITS)) as address:
        yield address


def content_of(one: pydicom.Dataset) -> bytes:
    file = io.BytesIO()
    one.save_as(file, enforce_file_format=True)
    return file.getvalue()


def zipped(contents: list[bytes], names: list[str] | None = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for i, content in enumerate(contents):
            archive.writestr(names[i] if names else f"{SECRET}/IM{i:04d}", content)
    return file.getvalue()


def send(address: str, *contents: bytes, **fields) -> requests.Response:
    files = [("file", ("image", content)) for content in contents]
    return requests.post(f"{address}/api/predict", files=files, data=fields, timeout=60)


def fetch(address: str, answer: dict, name: str) -> bytes:
    return requests.get(f"{address}/api/results/{answer['id']}/{name}", timeout=60).content


@pytest.mark.parametrize("axes", [oblique(), SAGITTAL], ids=["oblique", "sagittal"])
def test_a_series_comes_back_as_seg(model, address, tmp_path, caplog, axes):
    """As files and as a zip: the mask that `SuperModel.predict` gives of the same voxels, in the patient's record."""
    slices = write_series(tmp_path / "in", random_volume(3), axes=axes, sop_class=MR)
    contents = [path.read_bytes() for path in sorted((tmp_path / "in").iterdir())]
    (image,) = scan((tmp_path / "in").iterdir()).images
    expected = model.predict(load(image).array)
    caplog.set_level(logging.DEBUG)
    for upload in (contents, [zipped(contents)]):
        found = send(address, *upload)
        assert found.status_code == 200, found.text
        answer = found.json()
        assert answer["kind"] == "volume" and [s["model"] for s in answer["slices"]] == [
            s.model for s in expected.slices
        ]
        assert (
            "mask.dcm" in answer["files"] and SECRET not in found.text and slices[0].SeriesInstanceUID not in found.text
        )
        (tmp_path / "m.nii.gz").write_bytes(fetch(address, answer, "mask.nii.gz"))
        (tmp_path / "m.dcm").write_bytes(fetch(address, answer, "mask.dcm"))
        masks = LabelMasks(image)
        add_segmentation(masks, tmp_path / "m.dcm", model.settings.task)
        volume = nibabel.load(tmp_path / "m.nii.gz")
        assert np.array_equal(np.asarray(volume.dataobj).transpose(2, 1, 0) > 0, masks.labels["prostate"])
        assert np.allclose(volume.affine, load(image).nifti().affine)
        assert masks.labels["prostate"].sum() == (expected.mask > 0).sum() > 0
        seg = pydicom.dcmread(tmp_path / "m.dcm")
        assert seg.PatientID == slices[0].PatientID and "Not for clinical use" in seg.SeriesDescription
        assert answer["slices"][0]["measures"]["prostate_mm2"] is not None
    assert SECRET not in caplog.text


def test_a_picture_and_a_clip(model, address):
    rng = np.random.default_rng(0)
    one = send(address, content_of(dataset(rng.integers(0, 255, (20, 30), np.uint8), US))).json()
    assert (one["kind"], one["width"], one["height"]) == ("picture", 30, 20)
    clip = send(address, content_of(dataset(rng.integers(0, 255, (3, 20, 30), np.uint8), US_CLIP))).json()
    assert clip["kind"] == "volume" and len(clip["slices"]) == 3
    assert pydicom.dcmread(io.BytesIO(fetch(address, clip, "mask.dcm"))).NumberOfFrames == 3
    plain = requests.post(f"{address}/api/predict", files={"file": ("a", picture())}, timeout=60).json()
    missing = requests.get(f"{address}/api/results/{plain['id']}/mask.dcm", timeout=60)
    assert missing.status_code == 404 and "no DICOM" in missing.json()["detail"] and "mask.dcm" not in plain["files"]


def broken() -> list[tuple[str, list[bytes]]]:
    """What is wrong, and the files."""
    whole = [content_of(one) for one in series(random_volume(1), sop_class=MR)]
    other = [content_of(one) for one in series(random_volume(2), sop_class=MR)]
    big = series(np.zeros((1, 8, 8), np.int16), sop_class=MR)[0]
    big.Rows = big.Columns = 60_000
    deflated = series(random_volume(1), sop_class=MR)[0]
    deflated.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    odd = series(random_volume(1), sop_class=MR)[0]
    odd.PixelSpacing = [0, float("inf")]
    apart = [*whole[:2], *[content_of(one) for one in series(random_volume(1), step=7.3, sop_class=MR)]]
    found = [
        ("two series", whole + other),
        ("a picture among them", [*whole, picture()]),
        ("two pictures", [picture(), picture(seed=1)]),
        ("more pixels than there are", [content_of(big)]),
        ("deflated", [content_of(deflated)]),
        ("no spacing", [content_of(odd)]),
        ("slices of two volumes", apart),
        ("noise after DICM", [bytes(128) + b"DICM" + np.random.default_rng(0).bytes(3000)]),
        ("nothing after DICM", [bytes(128) + b"DICM"]),
        ("too many files", whole * 5),
        ("a zip of pictures", [zipped([picture()])]),
        ("an empty zip", [zipped([])]),
        ("a zip in a zip", [zipped([zipped(whole)])]),
        ("a zip of paths", [zipped([picture()], ["../../etc/passwd"])]),
        ("a zip cut off", [zipped(whole)[:-60]]),
        ("a damaged zip", [zipped(whole, method=zipfile.ZIP_STORED).replace(b"\x08\0", b"\x09\1")]),
        ("a bomb", [zipped([bytes(60 * MIB)])]),
        ("many bombs", [zipped([bytes(3 * MIB)] * 9)]),
        ("many files in a zip", [zipped([b"a"] * 30)]),
        ("a long list in a zip", [zipped([b""] * 400)]),
        ("a zip in words", [b"PK\3\4" + b"zip" * 100]),
    ]
    found += [(f"cut to {part:.0%}", [*whole[1:], whole[0][: int(part * len(whole[0]))]]) for part in (0.1, 0.5, 0.95)]
    return found


def test_what_is_broken_is_told_in_words(address, caplog):
    caplog.set_level(logging.WARNING)
    for what, contents in broken():
        answer = send(address, *contents)
        assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text)
        told = answer.json()["detail"]
        assert len(told) < 300 and "Traceback" not in told and "/tmp" not in answer.text, (what, told)
        assert SECRET not in answer.text and "\n" not in told, what
    assert "unexpected" not in caplog.text and SECRET not in caplog.text
    good = [content_of(one) for one in series(random_volume(1), sop_class=MR)]
    assert send(address, *good).status_code == 200, "it still works"


def test_a_header_that_no_seg_can_have(address, monkeypatch):
    """highdicom refuses what other programs wrote: no mask without its record, and none of its words."""
    import highdicom

    def refuse(*_, **__):
        raise ValueError(f"the name {SECRET} is malformed")

    monkeypatch.setattr(highdicom.seg, "Segmentation", refuse)
    answer = send(address, *(content_of(one) for one in series(random_volume(1), sop_class=MR)))
    assert answer.status_code == 422 and "no DICOM-SEG" in answer.text and SECRET not in answer.text


def test_nothing_touches_the_disk(address):
    written: list[str] = []

    def note(event: str, args: tuple) -> None:
        if watching and event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            written.append(str(args[0]))

    contents = [content_of(one) for one in series(random_volume(1), sop_class=MR)]
    watching = True
    sys.addaudithook(note)
    assert send(address, *contents).status_code == 200
    watching = False
    assert all(name.isdecimal() or name == "-1" for name in written), written  # descriptors: sockets, memfd


def test_keep(model, tmp_path):
    contents = [content_of(one) for one in series(random_volume(1), sop_class=MR)]
    with serving(Service(model, LIMITS, tmp_path / "kept")) as address:
        assert send(address, *contents).status_code == 200
    (folder,) = (tmp_path / "kept").iterdir()
    names = {f"image-{i + 1}.dcm" for i in range(6)} | {"mask.dcm", "mask.nii.gz", "answer.json"}
    assert {file.name for file in folder.iterdir()} == names
    assert (folder / "image-3.dcm").read_bytes() == contents[2]
    assert SECRET not in (folder / "answer.json").read_text()
