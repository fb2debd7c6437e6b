"""Wilcoxon's signed-rank test (Wilcoxon, 1945): are paired differences as often, and as far, above 0 as below?

Differences of 0 are left out. The others are ranked by size, equal ones share their mean rank, and

    W = sum of the ranks of the positive differences

If the sign of every difference were the toss of a coin, W would be symmetric around n (n + 1) / 4. The p-value is the
probability of a W at least as far from there as the one seen, on either side: counted exactly up to `EXACT`
differences, also with ties, and by the normal distribution with Var W = sum of rank^2 / 4 beyond.
"""

from __future__ import annotations

import math

import numpy as np

EXACT = 200
_DIGITS = 12  # differences that agree so far are equal: 0.3 - 0.2 is not 0.1 in floating point


def signed_rank_p(differences: np.ndarray) -> float:
    """The two-sided p-value; 1 where no difference is left.

    Args:
        differences: (N,) one of each pair.
    """
    values = np.round(np.asarray(differences, np.float64), _DIGITS)
    values = values[values != 0]
    if not len(values):
        return 1.0
    doubled = _doubled_ranks(np.abs(values))
    seen = int(doubled[values > 0].sum())
    return _exact(doubled, seen) if len(values) <= EXACT else _normal(doubled, seen)


def _doubled_ranks(sizes: np.ndarray) -> np.ndarray:
    """Twice the ranks: whole numbers, also where equal ones share a mean rank."""
    _, group, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = counts.cumsum()  # the ranks of a group go from last - count + 1 to last
    return (2 * last - counts + 1)[group]


def _exact(doubled: np.ndarray, seen: int) -> float:
    """The distribution of 2 W, built one difference after the other: its rank is added or not, with chance 1/2 each."""
    chance = np.zeros(doubled.sum() + 1)
    chance[0] = 1.0
    for rank in doubled:
        chance[rank:] = (chance[rank:] + chance[:-rank]) / 2
        chance[:rank] /= 2
    return min(1.0, 2 * min(chance[: seen + 1].sum(), chance[seen:].sum()).item())


def _normal(doubled: np.ndarray, seen: int) -> float:
    deviation = math.sqrt((doubled.astype(np.float64) ** 2).sum() / 4)
    return math.erfc(abs(seen - doubled.sum() / 2) / deviation / math.sqrt(2))
