"""Volumes are turned to one axis convention, whatever the file's own."""

import os

import nibabel
import numpy as np
import pytest
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.data.readers import read, slice_count, stem, suffix


def volume(tmp_path, codes: str, shape=(6, 5, 4)):
    """A volume whose voxels know where they are (100 x + 10 y + z in RAS), stored in another orientation."""
    x, y, z = np.indices(shape)
    ras = nibabel.Nifti1Image((100 * x + 10 * y + z).astype(np.int16), np.diag([1.0, 2.0, 3.0, 1.0]))
    target = nibabel.orientations.axcodes2ornt(codes)
    turned = ras.as_reoriented(nibabel.orientations.ornt_transform(nibabel.io_orientation(ras.affine), target))
    path = tmp_path / f"{codes}.nii.gz"
    nibabel.save(turned, path)
    return path


@pytest.mark.parametrize("codes", ["RAS", "LPS", "LAS", "PIR", "SRA"])
def test_orientation(tmp_path, codes):
    """Slices along z; the first row is the front of the patient (largest y), columns go with x."""
    array = read(volume(tmp_path, codes), "s")
    assert array.shape == (4, 5, 6, 1)
    assert array[3, 0, 2, 0] == 100 * 2 + 10 * 4 + 3
    assert array[0, 4, 0, 0] == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_two_dimensional_nifti(tmp_path, sign):
    path = tmp_path / "flat.nii"
    nibabel.save(nibabel.Nifti1Image(np.arange(12, dtype=np.int16).reshape(4, 3), np.diag([sign, 1.0, 1.0, 1.0])), path)
    assert read(path, "s").shape == (1, 3, 4, 1)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR"])
def test_the_fourth_axis_is_that_of_the_channels(tmp_path, codes):
    """Each channel is what the reader makes of its own volume, however the file is stored."""
    one = nibabel.load(volume(tmp_path, codes))
    voxels = np.asanyarray(one.dataobj)
    nibabel.save(nibabel.Nifti1Image(np.stack([voxels, 2 * voxels, -voxels], -1), one.affine), tmp_path / "many.nii.gz")
    alone = read(tmp_path / f"{codes}.nii.gz", "s")
    many = read(tmp_path / "many.nii.gz", "s")
    assert np.array_equal(many, np.concatenate([alone, 2 * alone, -alone], -1))
    assert slice_count(tmp_path / "many.nii.gz") == len(alone)
    with pytest.raises(UserError, match="not a 2D or 3D mask"):
        read(tmp_path / "many.nii.gz", "s", mask=True)


@pytest.mark.parametrize("data", [np.zeros((3, 3, 3, 2, 2), np.int16), np.zeros((3, 3, 3), np.complex64)])
def test_what_is_no_image_is_refused(tmp_path, data):
    path = tmp_path / "odd.nii.gz"
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), path)
    with pytest.raises(UserError, match="cannot be read"):
        read(path, "s")


def test_names():
    from pathlib import Path

    assert suffix(Path("a.b.NII.GZ")) == ".nii.gz" and stem(Path("a.b.NII.GZ")) == "a.b"
    assert stem(Path("x y.png")) == "x y"


RNG = np.random.default_rng(0)
GREY, RGB = RNG.integers(0, 256, (6, 8), np.uint8), RNG.integers(0, 256, (6, 8, 3), np.uint8)
ALPHA = RNG.integers(0, 256, (6, 8, 1), np.uint8)
DEEP = RNG.integers(256, 65536, (6, 8)).astype(np.uint16)
FLOAT = RNG.random((6, 8), np.float32)


@pytest.mark.parametrize(
    ("name", "pixels"),
    [
        ("grey.png", GREY), ("rgb.png", RGB), ("rgba.png", np.concatenate([RGB, ALPHA], -1)),
        ("grey_alpha.png", np.concatenate([GREY[..., None], ALPHA], -1)), ("deep.png", DEEP),
        ("grey.tif", GREY), ("rgb.tiff", RGB), ("rgba.tif", np.concatenate([RGB, ALPHA], -1)), ("deep.tif", DEEP),
        ("deep_big_endian.tif", DEEP.astype(">u2")), ("float.tif", FLOAT),
        ("grey.bmp", GREY), ("rgb.bmp", RGB), ("rgb.ppm", RGB), ("grey.pgm", GREY), ("deep.pgm", DEEP),
        ("rgb.pnm", RGB), ("grey.gif", GREY), ("UPPER.PNG", RGB),
    ],
)  # fmt: skip
def test_pictures_keep_their_pixels(tmp_path, name, pixels):
    """Every format, depth and number of channels; in bytes of the machine's own order."""
    Image.fromarray(pixels).save(tmp_path / name)
    for mask in (False, True):
        array = read(tmp_path / name, "s", mask)
        assert array.dtype.isnative
        assert array.shape == (1, 6, 8, 1 if pixels.ndim == 2 else pixels.shape[-1])
        np.testing.assert_array_equal(array.reshape(pixels.shape), pixels)


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg"])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg(tmp_path, name, mode):
    smooth = np.linspace(0, 255, 64, dtype=np.uint8)[None].repeat(48, 0)
    Image.fromarray(smooth).convert("RGB").convert(mode).save(tmp_path / name, quality=95)
    array = read(tmp_path / name, "s")
    assert array.shape == (1, 48, 64, 1 if mode == "L" else 3)
    assert np.abs(array[0].astype(int) - smooth[..., None]).max() <= 4


def painted(labels: np.ndarray, palette: list[int]) -> Image.Image:
    picture = Image.fromarray(labels).convert("P")
    picture.putdata(labels.flatten().tolist())
    picture.putpalette(palette)
    return picture


LABELS = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)


@pytest.mark.parametrize("name", ["mask.gif", "mask.png", "mask.bmp", "mask.tif"])
def test_colour_palette_is_rgb_as_image_and_its_numbers_as_mask(tmp_path, name):
    """Black, red and (7, 7, 7): a grey among colours is a colour."""
    painted(LABELS, [0, 0, 0, 255, 0, 0, 7, 7, 7]).save(tmp_path / name)
    np.testing.assert_array_equal(read(tmp_path / name, "s", mask=True)[0, ..., 0], LABELS)
    image = read(tmp_path / name, "s")
    assert image.shape == (1, 2, 3, 3)
    assert image[0, 0].tolist() == [[0, 0, 0], [255, 0, 0], [7, 7, 7]]


@pytest.mark.parametrize("name", ["mask.gif", "mask.png"])
def test_grey_palette_is_what_it_looks_like(tmp_path, name):
    """A mask of 0 and 255, or of 0 and 2: pillow's GIF writer numbers the two greys 0 and 1."""
    for top in (255, 2):
        grey = (LABELS > 1).astype(np.uint8) * top
        Image.fromarray(grey).save(tmp_path / name)
        np.testing.assert_array_equal(read(tmp_path / name, "s", mask=True)[0, ..., 0], grey)
        painted(LABELS // 2, [0, 0, 0, top, top, top]).save(tmp_path / name)
        np.testing.assert_array_equal(read(tmp_path / name, "s", mask=True)[0, ..., 0], grey)


@pytest.mark.parametrize("name", ["film.gif", "stack.tif"])
def test_several_pictures_in_a_file_are_refused(tmp_path, name):
    """Taking the first in silence would lose the others."""
    frames = [Image.fromarray(RNG.integers(0, 256, (6, 8), np.uint8)) for _ in range(3)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="3 pictures in one file"):
        read(tmp_path / name, "s")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "loop.png", "folder.png", "nowhere.nii.gz"):
        with pytest.raises(UserError, match="not a regular file"):
            read(tmp_path / name, "s")


@pytest.mark.parametrize("dtype", [">i2", "<i2", "u1", ">f4", "f8", "u2"])
def test_nifti_of_any_type(tmp_path, dtype):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii")
    array = read(tmp_path / "a.nii", "s")
    assert array.dtype.isnative and array.shape == (4, 3, 2, 1)
    np.testing.assert_array_equal(array[..., 0], values.transpose(2, 1, 0)[:, ::-1])
