"""Dice, IoU and HD95 by hand, empty masks among them."""

import math

import pytest
import torch

pytest.importorskip("scipy", reason="MONAI's Hausdorff distance needs scipy: pip install 'fedsm[report]'")

from fedsm.evaluation.metrics import metrics_per_image


def mask(*pixels, size=(4, 5)) -> torch.Tensor:
    """(1, 1, H, W) with these (row, column) set."""
    result = torch.zeros(1, 1, *size, dtype=torch.bool)
    for row, column in pixels:
        result[0, 0, row, column] = True
    return result


def scores(prediction, truth, spacing=(1.0, 1.0)) -> dict:
    return {name: value.item() for name, value in metrics_per_image(prediction, truth, spacing).items()}


def test_by_hand():
    """P = {(0,0), (0,1)}, T = {(0,1), (0,2)}: 1 pixel of 2 + 2, 1 of the union's 3; each edge pixel is 0 or 1 away.

    From P: distances 1, 0; the 95th percentile of (0, 1) is 0.95. From T the same.
    """
    got = scores(mask((0, 0), (0, 1)), mask((0, 1), (0, 2)))
    assert got["dice"] == pytest.approx(2 * 1 / (2 + 2))
    assert got["iou"] == pytest.approx(1 / 3)
    assert got["hd95"] == pytest.approx(0.95)


def test_the_larger_direction_counts():
    """P = {(0,0)}, T = {(0,0), (0,3)}: from P 0; from T (0, 3), whose 95th percentile is 2.85."""
    assert scores(mask((0, 0)), mask((0, 0), (0, 3)))["hd95"] == pytest.approx(2.85)


def test_spacing_is_that_of_rows_and_columns():
    """One pixel against one, 3 rows and 4 columns away: with rows of 2 mm and columns of 0.5 mm sqrt(36 + 4)."""
    assert scores(mask((0, 0)), mask((3, 4)))["hd95"] == pytest.approx(5.0)
    assert scores(mask((0, 0)), mask((3, 4)), (2.0, 0.5))["hd95"] == pytest.approx(math.sqrt(40))


def test_empty_masks_are_defined():
    """4 x 5 pixels: the diagonal from corner to corner is 3 rows and 4 columns, 5."""
    assert scores(mask(), mask()) == {"dice": 1, "iou": 1, "hd95": 0}
    assert scores(mask((1, 1)), mask()) == {"dice": 0, "iou": 0, "hd95": 5}
    assert scores(mask(), mask((1, 1))) == {"dice": 0, "iou": 0, "hd95": 5}


def test_dice_is_monais():
    from monai.metrics import compute_dice

    torch.manual_seed(0)
    prediction, truth = torch.rand(6, 2, 9, 9) > 0.6, torch.rand(6, 2, 9, 9) > 0.6
    theirs = compute_dice(prediction.float(), truth.float(), ignore_empty=False)
    assert torch.allclose(metrics_per_image(prediction, truth, (1.0, 1.0))["dice"], theirs)
