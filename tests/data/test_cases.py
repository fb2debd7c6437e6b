"""A site's files one by one: the same tensors and parts as training has, with patient and spacing."""

import json

import nibabel
import numpy as np
import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.data.cases import SiteCases, data_folders
from fedsm.data.dataset import load_site
from fedsm.data.readers import voxel_spacing
from tests.helpers.small_jobs import small_settings


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_the_same_images_as_training(data_root, part):
    settings = small_settings()
    cases = list(SiteCases(data_root / "site-1", "site-1", settings, part))
    trained = load_site(data_root / "site-1", "site-1", settings)[part]
    assert torch.equal(torch.cat([c.images for c in cases]), trained.images)
    assert torch.equal(torch.cat([c.labels for c in cases]), trained.labels)


def test_the_written_split_is_read_and_left_alone(data_root, tmp_path):
    """A run had one image only in its test part; nothing is written to the run."""
    stems = [f"case_{i:02d}" for i in range(16)]
    kept = tmp_path / "seed_0" / "splits.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"train": stems[:14], "validation": stems[14:15], "test": stems[15:]}))
    before = kept.stat().st_mtime_ns
    cases = SiteCases(data_root / "site-1", "site-1", small_settings(), "test", tmp_path)
    assert [c.stem for c in cases] == ["case_15"]
    assert kept.stat().st_mtime_ns == before
    SiteCases(data_root / "site-1", "site-1", small_settings(), "test", tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_spacing_of_the_resized_picture(data_root):
    """40 pixels became 32: a row is 1.25 pixels of the file."""
    case = next(iter(SiteCases(data_root / "site-1", "site-1", small_settings(), "all")))
    assert case.spacing == (1.25, 1.25) and case.unit == "px" and case.part == "all"


def test_millimetres_of_a_volume_however_it_is_stored(tmp_path):
    """x 0.5, y 2, z 3 mm: rows are y, columns x; also where the file has its axes in another order."""
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6)), np.diag([0.5, 2.0, 3.0, 1])), tmp_path / "a.nii")
    turned = np.array([[0, 0.5, 0, 0], [2.0, 0, 0, 0], [0, 0, 3.0, 0], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(np.zeros((5, 4, 6)), turned), tmp_path / "b.nii.gz")
    assert voxel_spacing(tmp_path / "a.nii") == pytest.approx((3.0, 2.0, 0.5))
    assert voxel_spacing(tmp_path / "b.nii.gz") == pytest.approx((3.0, 2.0, 0.5))
    assert voxel_spacing(tmp_path / "c.png") is None


def test_a_root_or_one_site(data_root, tmp_path):
    assert list(data_folders(data_root)) == ["site-1", "site-2", "site-3"]
    assert data_folders(data_root / "site-2") == {"site-2": data_root / "site-2"}
    with pytest.raises(UserError, match="holds no site"):
        data_folders(tmp_path)
