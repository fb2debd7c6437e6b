"""What is found in a folder of DICOM files: geometry, order, numbers, and what is refused before it costs memory."""

import os
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.uid import DeflatedExplicitVRLittleEndian

from fedsm.data.dicom import header
from fedsm.data.dicom.header import open_file, read_instance
from fedsm.data.dicom.image import load
from fedsm.data.dicom.pixels import codestream_size, read_frames
from fedsm.data.dicom.scan import scan, walk
from fedsm.data.dicom.unusable import Unusable
from tests.helpers.dicom_files import (
    AXIAL,
    FLIPPED,
    MR,
    SAGITTAL,
    SECRET,
    US,
    dataset,
    enhanced,
    oblique,
    random_volume,
    save,
    series,
    truncate,
    write_series,
)  # fmt: skip


def sample(name: str) -> Path:
    """One of pydicom's own files; none is downloaded."""
    return Path(get_testdata_file(name, download=False))


REPORT = "1.2.840.10008.5.1.4.1.1.88.11"


@pytest.mark.parametrize("axes", [AXIAL, FLIPPED, SAGITTAL, oblique()], ids=["axial", "flipped", "sagittal", "oblique"])
def test_slices_are_sorted_by_their_positions(tmp_path, axes):
    volume = random_volume()
    write_series(tmp_path / "deep" / "er", volume, axes=axes)
    (image,) = scan(walk(tmp_path)).images
    assert np.array_equal(load(image).pixels[..., 0], volume)
    normal = np.cross(*axes)
    assert np.allclose(image.affine[:3, 2], 2.5 * normal) and np.allclose(image.affine[:3, 3], (-20, -30, 40))
    assert np.allclose(image.affine[:3, 0], 0.9 * np.array(axes[0])), "columns are 0.9 mm apart"


def test_numbers_are_those_of_the_modality(tmp_path):
    volume = random_volume(dtype=np.uint16)
    for name, tags, expected in (
        ("ct", {"RescaleSlope": 1, "RescaleIntercept": -1024}, volume.astype(np.int16) - 1024),
        ("pet", {"RescaleSlope": 0.25, "RescaleIntercept": 0}, (volume / 4).astype(np.float32)),
        ("inverted", {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}, 4095 - volume),
    ):
        write_series(tmp_path / name, volume, **tags)
        (image,) = scan(walk(tmp_path / name)).images
        pixels = load(image).pixels[..., 0]
        assert np.array_equal(pixels, expected) and pixels.dtype == expected.dtype, name
    save(enhanced(volume), tmp_path / "enhanced.dcm")
    (image,) = scan([tmp_path / "enhanced.dcm"]).images
    assert np.array_equal(load(image).pixels[..., 0], 2 * volume + 1), "sorted, with the frames' own scale"


def test_compressed_and_coloured_files_that_come_with_pydicom():
    same = [read_frames(sample(name)) for name in (
        "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm",
        "MR_small_bigendian.dcm",
    )]  # fmt: skip
    assert all(np.array_equal(same[0], other) for other in same)
    for name in (
        "SC_rgb_jpeg_dcmtk.dcm",
        "SC_rgb_dcmtk_+eb+cy+np.dcm",
        "examples_palette.dcm",
        "examples_ybr_color.dcm",
    ):
        colour = read_frames(sample(name))
        assert colour.shape[-1] == 3 and colour.dtype == np.uint8 and len(np.unique(colour)) > 2
    with pytest.raises(Unusable, match="no installed package reads"):
        read_frames(sample("JPEG-lossy.dcm"))  # 12 bits: needs a package under the GPL
    with pytest.raises(Unusable, match="more pixels than its header"):
        read_frames(sample("JPEG2000-embedded-sequence-delimiter.dcm"))


def test_what_is_no_volume_is_named_once(tmp_path):
    volume = random_volume()
    write_series(tmp_path / "good", volume)
    twice = series(volume)
    for i, one in enumerate(twice + series(volume, SeriesInstanceUID=twice[0].SeriesInstanceUID)):
        save(one, tmp_path / "echoes" / str(i))
    sizes = series(volume)
    for i, one in enumerate([*sizes, *series(volume[:, :12, :12], SeriesInstanceUID=sizes[0].SeriesInstanceUID)]):
        save(one, tmp_path / "sizes" / str(i))
    save(dataset(volume[0], REPORT, Modality="SR", Rows=0), tmp_path / "report")
    truncate(save(dataset(volume[0]), tmp_path / "cut.dcm"), keep=0.5)
    os.link(tmp_path / "good" / "IM0001", tmp_path / "copy")
    found = scan(walk(tmp_path), tmp_path)
    assert len(found.images) == 1
    assert {problem.text(tmp_path).split(" (")[0]: problem.reason for problem in found.problems} == {
        "echoes/0 and 11 more files of its series": "has several slices at one position"
        " (echoes, times or diffusion weights)",
        "sizes/0 and 11 more files of its series": "has slices of different sizes",
        "report": "is DICOM without an image",
        "cut.dcm": "is damaged or truncated",
        "good/IM0001": "is here twice",
    }
    assert SECRET not in found.describe() + "".join(problem.text(tmp_path) for problem in found.problems)


def test_links_out_of_the_folder_and_dicomdirs_are_not_followed(tmp_path):
    save(dataset(random_volume()[0], US), tmp_path / "elsewhere" / "a.dcm")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "link.dcm").symlink_to(tmp_path / "elsewhere" / "a.dcm")
    (tmp_path / "site" / "folder").symlink_to(tmp_path / "elsewhere")
    found = scan(walk(tmp_path / "site"), tmp_path / "site")
    assert not found.images and [problem.reason for problem in found.problems] == [
        "is a link that leads out of the folder"
    ]
    index = sample("DICOMDIR-nooffset")
    assert not scan([index]).problems and not scan([index]).images


def test_bombs_are_refused_before_they_take_memory(tmp_path, monkeypatch):
    large = dataset(np.zeros((4, 4), np.uint8), US, Rows=60000, Columns=60000)
    with pytest.raises(Unusable, match="limit is 100 million"):
        read_instance(save(large, tmp_path / "large"))
    many = dataset(np.zeros((4, 4), np.uint8), US, NumberOfFrames=99_999, Rows=4000, Columns=4000)
    with pytest.raises(Unusable, match="limit is 4 GiB"):
        read_instance(save(many, tmp_path / "many"))
    monkeypatch.setattr(header, "_INFLATED_BYTES", 2**20)
    bomb = dataset(np.zeros((2000, 2000), np.uint8), US)
    bomb.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    path = save(bomb, tmp_path / "deflated")
    assert path.stat().st_size < 50_000
    with pytest.raises(Unusable, match="when inflated"):
        open_file(path)


def test_nested_sequences_and_random_damage_end_in_one_way(tmp_path):
    deep = dataset(random_volume()[0], MR)
    innermost = deep
    for _ in range(150):
        inner = Dataset()
        innermost.ReferencedStudySequence = [inner]
        innermost = inner
    path = save(deep, tmp_path / "deep")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(60):
        broken = bytearray(content)
        for at in rng.integers(132, 1500, 6):
            broken[at] = rng.integers(0, 256)
        path.write_bytes(broken[: rng.integers(200, len(broken))] if trial % 2 else broken)
        for read in (read_instance, read_frames):
            try:
                read(path)
            except Unusable as e:
                assert SECRET not in f"{e.reason} {e.remedy}"


def test_a_codestream_says_its_own_size():
    for name in ("JPEG2000.dcm", "SC_rgb_jpeg_dcmtk.dcm", "MR_small_jpeg_ls_lossless.dcm"):
        d = pydicom.dcmread(sample(name))
        frame = next(pydicom.encaps.generate_frames(d.PixelData, number_of_frames=1))
        assert codestream_size(frame) == (d.Columns, d.Rows)
    assert codestream_size(b"") is codestream_size(b"rubbish" * 20) is None
