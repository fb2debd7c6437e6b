"""Mean, deviation, worst site and spread, by hand."""

import pytest

from fedsm.core.spread import mean_std, site_spread, spread_cells, worst_site


def test_mean_and_deviation():
    """0.8, 0.9, 0.7: mean 0.8; squares of the differences 0, 0.01, 0.01; 0.02 / 2 = 0.01, whose root is 0.1."""
    assert mean_std([0.8, 0.9, 0.7]) == (pytest.approx(0.8), pytest.approx(0.1))
    assert mean_std([0.8]) == (0.8, None)
    assert mean_std([0.8, None]) == mean_std([]) == (None, None)


def test_the_worst_site_has_the_lowest_dice_and_the_highest_distance():
    values = {"a": 0.8, "b": 0.7, "c": None, "d": 0.9, "e": 0.7}
    assert worst_site(values) == "b", "the first of two equal ones"
    assert worst_site(values, highest=True) == "d"
    assert worst_site({"a": None}) is None


def test_the_spread_is_over_the_sites_that_have_a_value():
    """The deviation of 0.8, 0.9 and 0.7 is 0.1; c did not answer."""
    values = {"a": 0.8, "b": 0.9, "c": None, "d": 0.7}
    assert site_spread(values) == pytest.approx(0.1)
    assert site_spread({"a": 0.8}) is None
    assert spread_cells(values) == ["0.7000 (d)", "0.1000"]
    assert spread_cells(values, digits=1, highest=True) == ["0.9 (b)", "0.1"]
    assert spread_cells({"a": 0.8, "b": None}) == ["0.8000 (a)", "-"] and spread_cells({}) == ["-", "-"]
