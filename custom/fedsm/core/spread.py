"""Mean and spread of scores: over seeds, and over sites with the worst of them.

Every deviation is the sample standard deviation (n - 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, stdev

WORST, SPREAD = "worst site", "spread over sites"  # columns of every table of Dice


def mean_std(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; no mean where a value is missing, no deviation of one value."""
    given = list(values)
    known = [value for value in given if value is not None]
    if not known or len(known) < len(given):
        return None, None
    return fmean(known), stdev(known) if len(known) > 1 else None


def worst_site(per_site: Mapping[str, float | None], highest: bool = False) -> str | None:
    """The site with the lowest value (`highest`: with the highest, of distances); of equal ones the first.

    Args:
        per_site: site -> value; a site without one is left out.
        highest: a high value is a bad one.
    """
    known = {site: value for site, value in per_site.items() if value is not None}
    worst = max if highest else min
    return worst(known, key=lambda site: known[site]) if known else None


def site_spread(per_site: Mapping[str, float | None]) -> float | None:
    """The deviation over the sites that have a value; None of fewer than two."""
    return mean_std(value for value in per_site.values() if value is not None)[1]


def spread_cells(per_site: Mapping[str, float | None], digits: int = 4, highest: bool = False) -> list[str]:
    """The cells of a table's columns `WORST` and `SPREAD`: `0.7657 (site-5)` and `0.0641`."""
    site, spread = worst_site(per_site, highest), site_spread(per_site)
    worst = "-" if site is None else f"{per_site[site]:.{digits}f} ({site})"
    return [worst, "-" if spread is None else f"{spread:.{digits}f}"]
