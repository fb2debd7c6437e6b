"""How much one site may weigh in an average over sites.

    share_k = min(n_k, max_share * median(n_1 .. n_K))

A site reports its number of images itself. Without a limit, a site that claims a million images would decide every
average. The median is over all sites that registered, so that one site cannot move it far; with fewer than three sites
there is no majority, and the smaller count takes the median's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median


def bounded_shares(counts: Mapping[str, float], max_share: float) -> dict[str, float]:
    """Each site's weight in averages: its count, at most `max_share` times the median count.

    Args:
        counts: site -> number of images.
        max_share: how many times the median a site may weigh.

    Returns:
        site -> weight; a whole count stays the whole number it is.
    """
    if not counts:
        return {}
    usual = median(counts.values()) if len(counts) > 2 else min(counts.values())
    return {site: count if count <= max_share * usual else max_share * usual for site, count in counts.items()}


def trimmed_mean(values: list[float]) -> float:
    """The mean without the lowest and the highest quarter of the values (at least one each from four values on).

    One of four or more sites cannot move it out of the range of the others' values, nor can a quarter of them together.
    One of two or three sites can, and so can two of four to seven that agree: there it is no protection.
    """
    cut = len(values) // 4
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)
