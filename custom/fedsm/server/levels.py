"""How much better one round's model is than another's, where other sites scored each: with `fraction`.

    score_kt = a_k + b_t + rest         a_k: how easy site k's images are,  b_t: how good the model of round t is

A mean over the sites of a round would prefer the round in which easy sites were drawn. Here a site counts only against
itself: a_k and b_t are fitted by least squares to all scores of the network so far, all sites of one weight, and rounds
are compared by b_t. Two rounds with no site in common are linked by others (k scored t and s, j scored s and r); rounds
without any link cannot be compared. Where all sites scored all rounds, b_t - b_s is the mean of their differences.

No site of four or more may decide. So a score whose rest is large, measured by the usual rest s (the median of their
sizes), weighs less (Huber 1964): w = min(1, c s / |rest|), c = 1.345, and the fit is made again with these weights,
until it no longer moves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Scores = Mapping[int, Mapping[str, float]]  # round -> site -> its score of the model that the round made
_MOST = 300  # rounds that are fitted: the newest; the fit takes time with the third power
_C, _LEAST = 1.345, 1e-6  # c, and the smallest s
_FITS, _STILL = 50, 1e-7


def gain(scores: Scores, later: int, earlier: int) -> float | None:
    """b_later - b_earlier; None where no chain of sites links the two rounds."""
    newest = sorted(scores)[-_MOST:]
    known = {number: scores[number] for number in {*newest, earlier, later} if scores[number]}
    linked = _linked(known, later)
    if earlier not in linked:
        return None
    rounds = sorted(linked)
    sites = sorted({site for number in rounds for site in known[number]})
    values = np.array([[known[number].get(site, np.nan) for site in sites] for number in rounds])
    levels = _levels(values)
    return float(levels[rounds.index(later)] - levels[rounds.index(earlier)])


def _linked(scores: Scores, start: int) -> set[int]:
    """The rounds that a chain of common sites leads to."""
    rounds, sites = {start}, set(scores[start])
    while more := {n for n, row in scores.items() if n not in rounds and sites & row.keys()}:
        rounds |= more
        sites |= {site for n in more for site in scores[n]}
    return rounds


def _levels(values: np.ndarray) -> np.ndarray:
    """b of every round. `values` is (rounds, sites), NaN where a site did not score."""
    scored = ~np.isnan(values)
    values, weights = np.where(scored, values, 0.0), scored.astype(float)
    levels = np.zeros(len(values))
    for _ in range(_FITS):
        # The normal equations without a: what a site's mean over its rounds explains is taken off both sides.
        shares, sums = weights / weights.sum(0), weights * values
        sides = sums.sum(1) - shares @ sums.sum(0)
        before, levels = levels, np.linalg.lstsq(np.diag(weights.sum(1)) - shares @ weights.T, sides, rcond=None)[0]
        if np.abs(levels - before).max() < _STILL:
            break
        left = values - levels[:, None]
        rests = np.abs(left - (shares * left).sum(0))
        usual = max(_LEAST, float(np.median(rests[scored])))
        weights = np.where(scored, np.minimum(1.0, _C * usual / np.maximum(rests, _LEAST)), 0.0)
    return levels
