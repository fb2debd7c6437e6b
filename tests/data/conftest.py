"""A site of pictures and one of volumes."""

import numpy as np
import pytest

from tests.helpers.small_jobs import write_site
from tests.helpers.spoiled import RNG, write_volume


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "hospital-a"
    write_site(folder, 14, seed=0)
    return folder


@pytest.fixture
def volumes(tmp_path):
    """A site of 12 volumes of 16 x 20 voxels and 5 slices; the fourth has the largest mask."""
    folder = tmp_path / "hospital-v"
    for i in range(12):
        mask = np.zeros((16, 20, 5), np.uint8)
        mask[4:10, 5:12, 2:4], mask[3:12, 4:14, 3] = 1, 1
        write_volume(folder / "images" / f"v{i}.nii.gz", RNG.normal(200, 40, mask.shape).astype(np.float32) + 50 * mask)
        write_volume(folder / "masks" / f"v{i}.nii.gz", mask)
    return folder
