"""Intervals by patient, against all samples that there are."""

from itertools import product

import numpy as np
import pytest

from fedsm.evaluation.bootstrap import DRAWS, client_average, pooled, resample, site_interval


def test_patients_are_drawn_with_all_their_images():
    """Patient a has 0, 0, 0 and b has 1: samples aa, ab, ba, bb have the means 0, 1/4, 1/4, 1, never 1/2."""
    drawn = resample(np.array([0, 0, 0, 1.0]), ["a", "a", "a", "b"], 0, "x")
    means = drawn.totals / drawn.counts
    assert set(means.tolist()) == {0.0, 0.25, 1.0}
    assert np.mean(means == 0.25) == pytest.approx(0.5, abs=0.05)
    assert drawn.mean == 0.25 and len(means) == DRAWS


def test_interval_is_that_of_all_samples():
    """Five patients of one image: all 5^5 equally likely samples can be counted."""
    values = np.array([0.1, 0.5, 0.6, 0.8, 0.9])
    means = [np.mean(sample) for sample in product(values, repeat=5)]
    low, high = np.quantile(means, [0.025, 0.975])
    got = site_interval(resample(values, list("abcde"), 0, "x"))
    assert got["mean"] == pytest.approx(0.58)
    assert got["low"] == pytest.approx(low, abs=0.03) and got["high"] == pytest.approx(high, abs=0.03)


def test_averages_by_hand():
    """Site x: one patient pair with means 0 and 0; y: 1, 1, 1. Client average 1/2, global 3/5; nothing varies."""
    x, y = resample(np.zeros(2), ["a", "b"], 0, "x"), resample(np.ones(3), ["a", "b", "c"], 0, "y")
    assert client_average([x, y]) == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert pooled([x, y])["mean"] == pytest.approx(0.6)


def test_one_patient_has_no_interval():
    assert site_interval(resample(np.array([0.2, 0.4]), ["a", "a"], 0, "x")) == {
        "mean": pytest.approx(0.3), "low": None, "high": None, "error": None,
    }  # fmt: skip


def test_seeded_and_different_at_each_site():
    values, patients = np.arange(6.0), list("abcdef")
    again = [resample(values, patients, 3, "x").totals for _ in range(2)]
    assert (again[0] == again[1]).all()
    assert (resample(values, patients, 3, "y").totals != again[0]).any()


def test_draws_do_not_depend_on_how_patients_are_named():
    """A file of scores has digests of their names."""
    values = np.arange(5.0)
    drawn = [resample(values, patients, 0, "x").totals for patients in (list("abbca"), list("zyyxz"))]
    assert (drawn[0] == drawn[1]).all()
