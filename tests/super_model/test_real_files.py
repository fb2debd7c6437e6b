"""Prediction on real pictures and volumes; the weights are random."""

import nibabel
import numpy as np
import pytest
from PIL import Image

from app_fedsm.cli.main import main
from fedsm.data.readers import read
from fedsm.super_model.model import SuperModel
from tests.helpers.real_data import NUCLEI, PROSTATE, needs_nuclei, needs_prostate
from tests.helpers.small_model import write_super_model


@needs_nuclei
def test_nuclei_masks_have_the_pictures_size(tmp_path):
    model = write_super_model(tmp_path, task="nuclei")
    inputs = [str(NUCLEI / site / "images" / "00[0-2].png") for site in ("fluor-696", "histology")]
    for out in ("one", "two"):
        assert main(["predict", str(model), *inputs, "-o", str(tmp_path / out)]) == 0
    masks = sorted((tmp_path / "one" / "masks").rglob("*.png"))
    assert len(masks) == 6
    for mask in masks:
        below = mask.relative_to(tmp_path / "one" / "masks")
        assert Image.open(mask).size == Image.open(NUCLEI / below).size
        assert set(np.unique(np.asarray(Image.open(mask)))) <= {0, 255}
        assert mask.read_bytes() == (tmp_path / "two" / "masks" / below).read_bytes()


@needs_prostate
def test_prostate_volume_equals_its_slices(tmp_path):
    """In one batch and slice by slice. Networks of other batches round differently: a pixel may differ where its
    probability is 0.5 to five digits."""
    folder = write_super_model(tmp_path, task="prostate", overrides=["task.selector_net={head: gap, width: 0.0625}"])
    volume = sorted((PROSTATE / "images").iterdir())[0]
    assert main(["predict", str(folder), str(volume), "-o", str(tmp_path / "out")]) == 0
    image, mask = nibabel.load(volume), nibabel.load(tmp_path / "out" / "masks" / volume.name)
    assert mask.shape == image.shape and np.array_equal(mask.affine, image.affine)
    assert mask.header.get_zooms() == image.header.get_zooms()

    model = SuperModel.load(folder, "cpu")
    pixels, size = model.read(volume)
    written = read(tmp_path / "out" / "masks" / volume.name, mask=True)[..., 0]
    assert len(pixels) == len(written) > 10 and 0 < (written > 0).mean() < 1
    for row in range(len(pixels)):
        (alone,) = model.finish(model.predict_batch(pixels[row : row + 1]), size)
        unsure = np.abs(alone.probabilities[0] - 0.5) < 1e-5
        assert np.array_equal(alone.mask[~unsure], written[row][~unsure])
        assert unsure.mean() < 1e-3


@pytest.mark.slow
def test_a_hundred_million_pixels(tmp_path):
    """10,000 x 10,000: it works, alone in memory, and the overlay is of a size that can be looked at."""
    model = write_super_model(tmp_path)
    Image.fromarray(np.zeros((10_000, 10_000, 3), np.uint8)).save(tmp_path / "large.png", compress_level=1)
    assert main(["predict", str(model), str(tmp_path / "large.png"), "-o", str(tmp_path / "out")]) == 0
    with Image.open(tmp_path / "out" / "masks" / "large.png") as mask:
        assert mask.size == (10_000, 10_000)
    with Image.open(tmp_path / "out" / "overlays" / "large.png") as overlay:
        assert overlay.size == (2048, 2048)
