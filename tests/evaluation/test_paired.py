"""Paired comparisons, by hand and against scipy."""

from itertools import product

import numpy as np
import pytest

from fedsm.evaluation import wilcoxon
from fedsm.evaluation.paired import Differences, compare
from fedsm.evaluation.wilcoxon import signed_rank_p


def test_wilcoxon_by_hand():
    """+1, +2, -3, +4: ranks 1 to 4, W = 1 + 2 + 4 = 7 of 10.

    Of 16 ways to toss four coins, W is 7, 8, 9 or 10 in 2, 1, 1 and 1 of them ({1, 2, 4} and {3, 4}; {1, 3, 4};
    {2, 3, 4}; all): 5 / 16 on this side, so p = 10 / 16.
    """
    assert signed_rank_p(np.array([1, 2, -3, 4.0])) == pytest.approx(10 / 16)
    assert signed_rank_p(-np.array([1, 2, -3, 4.0])) == pytest.approx(10 / 16), "either side"
    assert signed_rank_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == pytest.approx(2 / 32), "the least of five"
    assert signed_rank_p(np.array([1, 0, 2, -3, 4, 0.0])) == pytest.approx(10 / 16), "zeros are left out"
    assert signed_rank_p(np.zeros(3)) == signed_rank_p(np.array([])) == 1.0


def test_equal_differences_share_a_rank():
    """+1, +1, -1, +3: ranks 2, 2, 2, 4; W = 8. W >= 8: {2, 2, 4} three times and all, 4 / 16; p = 8 / 16.

    0.3 - 0.2 and 0.2 - 0.1 are equal, though not in floating point.
    """
    assert signed_rank_p(np.array([1, 1, -1, 3.0])) == pytest.approx(8 / 16)
    assert signed_rank_p(np.array([0.3 - 0.2, 0.2 - 0.1, -0.1, 0.3])) == pytest.approx(8 / 16)


@pytest.mark.parametrize("n", [5, 12])
def test_exact_is_the_count_of_all_signs(n):
    values = np.random.default_rng(n).integers(-4, 5, n).astype(float)  # with ties and zeros
    left = values[values != 0]
    _, group, counts = np.unique(np.abs(left), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[group]
    sums = np.array([ranks[list(signs)].sum() for signs in product((False, True), repeat=len(left))])
    seen = ranks[left > 0].sum()
    assert signed_rank_p(values) == pytest.approx(min(1, 2 * min((sums <= seen).mean(), (sums >= seen).mean())))


def test_as_scipy_does(monkeypatch):
    """Exact without ties, and the normal distribution with ties and without scipy's correction for continuity."""
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for n in (6, 20, 45):
        values = rng.normal(0.2, 1, n)
        assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)
    values = rng.integers(-5, 8, 300).astype(float)
    assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(values, method="approx").pvalue)
    few = rng.normal(0.1, 1, 150)
    exact = signed_rank_p(few)
    monkeypatch.setattr(wilcoxon, "EXACT", 10)
    assert signed_rank_p(few) == pytest.approx(exact, rel=0.02), "the two ways meet"


def test_patients_count_once_in_the_test_and_are_drawn_whole():
    """Site x: patient p has +0.3 three times, q has -0.1 once. Mean over images 0.2; patients' means 0.3 and -0.1."""
    x = Differences(np.array([0.3, 0.3, 0.3, -0.1]), ["p", "p", "p", "q"])
    assert x.of_patients().tolist() == pytest.approx([0.3, -0.1])
    found = compare({"x": x})["per_site"]["x"]
    assert found["mean"] == pytest.approx(0.2) and found["patients"] == 2 and found["images"] == 4
    assert found["p"] == 1.0, "W = 2 of 3: 2 of 4 tosses are at least that"
    assert found["low"] == pytest.approx(-0.1) and found["high"] == pytest.approx(0.3), "only q, only p"


def test_over_sites_by_hand():
    """x: 0.1 twice; y: 0.4 once and 0.2 once: client average (0.1 + 0.3) / 2; all images 0.8 / 4. Four patients, all
    better: p = 2 / 16. A name that both sites use is of two patients."""
    sites = {"x": Differences(np.array([0.1, 0.1]), ["1", "2"]), "y": Differences(np.array([0.4, 0.2]), ["1", "2"])}
    found = compare(sites)
    assert found["client_avg"]["mean"] == pytest.approx(0.2) and found["global"]["mean"] == pytest.approx(0.2)
    assert found["p"] == pytest.approx(2 / 16) and (found["images"], found["patients"]) == (4, 4)
    assert found["client_avg"]["low"] > 0.1 - 1e-9


def test_a_pair_finds_what_two_intervals_hide():
    """Hard and easy images differ by 0.2, the models by 0.01 on each of them."""
    from fedsm.evaluation.bootstrap import resample, site_interval

    rng = np.random.default_rng(0)
    second = rng.uniform(0.5, 0.9, 30)
    first = second + rng.normal(0.01, 0.005, 30)
    patients = [str(i) for i in range(30)]
    one, two = (site_interval(resample(v, patients, 0, "x")) for v in (first, second))
    assert one["low"] < two["mean"] and two["high"] > one["mean"], "each mean lies in the other's interval"
    found = compare({"x": Differences(first - second, patients)})["per_site"]["x"]
    assert found["low"] > 0 and found["p"] < 0.001
