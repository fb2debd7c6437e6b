"""Selection by a histogram is what sorting gives, to the bit."""

import pytest
import torch
from torch.nn import functional

from fedsm.selectors.descriptor import _band_energy
from fedsm.selectors.quantiles import values_at

RAMP = torch.rand(2, 3, 500, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "values",
    [RAMP, RAMP * 1e-4, RAMP * 9 - 4, (RAMP * 3).round() / 3, torch.zeros(1, 1, 500), RAMP.transpose(0, 1)[..., :500]],
)
def test_is_sorting(values):
    places = torch.tensor([0, 3, 249, 250, 498, 499])
    assert torch.equal(values_at(values, places), values.sort(dim=-1).values[..., places])


def test_one_pixel():
    assert values_at(torch.tensor([[[0.5]]]), torch.tensor([0, 0])).tolist() == [[[0.5, 0.5]]]


@pytest.mark.parametrize("size", [(32, 64), (2, 2)])
def test_band_energy_is_that_of_interpolation(size):
    level = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    low = functional.avg_pool2d(level, 2)
    blurred = functional.interpolate(low, size=size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(_band_energy(level, low), (level - blurred).square().mean((-2, -1)))
