"""Reliability and ECE by hand."""

import numpy as np
import pytest

from fedsm.evaluation.calibration import reliability


def test_by_hand():
    """0.6 and 0.6 (one right) and 0.95 (right): ECE = 2/3 |0.5 - 0.6| + 1/3 |1 - 0.95|."""
    found = reliability(np.array([0.6, 0.6, 0.95]), np.array([True, False, True]))
    assert [b["images"] for b in found["bins"]] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert found["bins"][5]["accuracy"] == 0.5 and found["bins"][5]["confidence"] == pytest.approx(0.6)
    assert found["ece"] == pytest.approx(2 / 3 * 0.1 + 1 / 3 * 0.05)
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_bounds_belong_to_the_bin_below():
    """0.3 in float32 is a little more than 0.3 and stays in (0.2, 0.3]; 0 is in the first bin, 1 in the last."""
    found = reliability(np.array([0.0, 0.3, 1.0], np.float32), np.array([False, True, True]))
    assert [b["images"] for b in found["bins"]] == [1, 0, 1, 0, 0, 0, 0, 0, 0, 1]
