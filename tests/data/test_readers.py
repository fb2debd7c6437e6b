"""Volumes are turned to one axis convention, whatever the file's own."""

import nibabel
import numpy as np
import pytest

from fedsm.data.readers import read, stem, suffix
from fedsm.errors import UserError


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


@pytest.mark.parametrize("data", [np.zeros((3, 3, 3, 2), np.int16), np.zeros((3, 3, 3), np.complex64)])
def test_what_is_no_image_is_refused(tmp_path, data):
    path = tmp_path / "odd.nii.gz"
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4)), path)
    with pytest.raises(UserError, match="cannot be read"):
        read(path, "s")


def test_names():
    from pathlib import Path

    assert suffix(Path("a.b.NII.GZ")) == ".nii.gz" and stem(Path("a.b.NII.GZ")) == "a.b"
    assert stem(Path("x y.png")) == "x y"
