"""Rounds that other sites scored, compared by hand."""

import numpy as np
import pytest

from fedsm.server.levels import gain


def test_a_site_counts_only_against_itself():
    """Site a is easy (0.9), b hard (0.4). Round 2 is 0.05 better than round 1, though its site scores 0.45 lower.

    a scored 1 and 3: b_3 - b_1 = -0.02; b scored 2 and 3: b_3 - b_2 = -0.07; so b_2 - b_1 = 0.05.
    """
    scores = {1: {"a": 0.90}, 2: {"b": 0.45}, 3: {"a": 0.88, "b": 0.38}}
    assert gain(scores, 2, 1) == pytest.approx(0.05)
    assert gain(scores, 1, 2) == pytest.approx(-0.05)
    assert gain(scores, 3, 1) == pytest.approx(-0.02)


def test_with_all_sites_in_all_rounds_it_is_the_mean_difference():
    """(0.1 + 0.0 + 0.2) / 3 = 0.1."""
    scores = {1: {"a": 0.5, "b": 0.6, "c": 0.1}, 2: {"a": 0.6, "b": 0.6, "c": 0.3}}
    assert gain(scores, 2, 1) == pytest.approx(0.1)


def test_rounds_that_nothing_links_cannot_be_compared():
    scores = {1: {"a": 0.9, "b": 0.8}, 2: {"c": 0.5}, 3: {"a": 0.7}, 4: {}}
    assert gain(scores, 2, 1) is None
    assert gain(scores, 3, 1) == pytest.approx(-0.2)


def test_one_liar_of_four_does_not_move_it():
    """Four sites a round of eight, exactly a_k + b_t; one of them says 0 in round 1 and 1 in round 6."""
    rng = np.random.default_rng(0)
    sites = [f"s{k}" for k in range(8)]
    easy, level = dict(zip(sites, rng.uniform(0.1, 0.5, 8), strict=True)), rng.uniform(0, 0.3, 7)
    drawn = {t: rng.choice(sites, 4, replace=False) for t in range(1, 7)}
    drawn[1][0], drawn[6][0] = "liar", "liar"
    scores = {t: {s: easy.get(s, 0.2) + level[t] for s in drawn[t]} for t in drawn}
    scores[1]["liar"], scores[6]["liar"] = 0.0, 1.0
    for t in range(2, 7):
        assert gain(scores, t, 1) == pytest.approx(level[t] - level[1], abs=1e-3), t
