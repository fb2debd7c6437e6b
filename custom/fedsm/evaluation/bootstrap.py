"""How uncertain a mean is: the bootstrap, by patient.

Patients are drawn with replacement, as many as there are, and all images of a drawn patient come along: images of one
patient are alike, and drawing them one by one would give intervals that are too narrow. Written by hand, because
`scipy.stats.bootstrap` draws single values, not groups. The interval is from the 2.5th to the 97.5th percentile of the
means of `DRAWS` such samples (Efron, 1979). Each site is resampled on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fedsm.data.split import derive_seed

DRAWS = 2000
LEVEL = 0.95


@dataclass
class Resampled:
    """A site's values and their bootstrap samples.

    Attributes:
        mean: mean of the values.
        count: number of values.
        totals: (DRAWS,) sum of the values in each sample.
        counts: (DRAWS,) number of values in each sample.
        patients: number of patients to draw from.
    """

    mean: float
    count: int
    totals: np.ndarray
    counts: np.ndarray
    patients: int


def resample(values: np.ndarray, patients: list[str], seed: int, site: str) -> Resampled:
    """Draws samples of a site's patients; the same ones for the same seed, site and patients.

    Args:
        values: (N,) one value per image.
        patients: the patient of each.
        seed: fixes the draws.
        site: the site's name; part of the seed.
    """
    group, drawn = draw_patients(patients, seed, site)
    values = np.asarray(values, np.float64)
    totals = np.bincount(group, values, drawn.shape[1])
    counts = np.bincount(group, minlength=drawn.shape[1])
    return Resampled(float(values.mean()), len(values), totals[drawn].sum(1), counts[drawn].sum(1), drawn.shape[1])


def draw_patients(patients: list[str], seed: int, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Samples of patients, with replacement, as many as there are.

    Args:
        patients: the patient of each of N images.
        seed: fixes the draws.
        names: further parts of the seed: the site, and the part of its images where two are drawn.

    Returns:
        (N,) the number of each image's patient, and (DRAWS, P) the numbers of the patients that were drawn.
    """
    unique, first, group = np.unique(patients, return_index=True, return_inverse=True)
    group = first.argsort().argsort()[group]  # numbered as they come: the draws do not depend on how patients are named
    rng = np.random.default_rng(derive_seed(seed, *names, "bootstrap"))
    return group, rng.integers(0, len(unique), (DRAWS, len(unique)))


def difference(first: Resampled, second: Resampled) -> Resampled:
    """First minus second of two models' values on the same images of a site, drawn with the same seed: the samples are
    of the same patients."""
    mean, totals = first.mean - second.mean, first.totals - second.totals
    return Resampled(mean, first.count, totals, first.counts, first.patients)


def site_interval(site: Resampled, bounds: bool = True) -> dict:
    """`mean`, `low`, `high` and the standard `error` of one site's mean.

    The last three are None if there is only one patient, or if no bounds may be shown.
    """
    if not bounds or site.patients < 2:
        return {"mean": site.mean, "low": None, "high": None, "error": None}
    means = site.totals / site.counts
    return _interval(site.mean, means, [site]) | {"error": float(means.std())}


def client_average(sites: list[Resampled]) -> dict:
    """The interval of the mean over sites of the sites' means."""
    return _interval(float(np.mean([s.mean for s in sites])), np.mean([s.totals / s.counts for s in sites], 0), sites)


def pooled(sites: list[Resampled]) -> dict:
    """The interval of the mean over all images of all sites."""
    mean = sum(s.mean * s.count for s in sites) / sum(s.count for s in sites)
    totals, counts = (np.sum([getattr(s, name) for s in sites], 0) for name in ("totals", "counts"))
    return _interval(mean, totals / counts, sites)


def from_errors(sites: list[dict], weights: list[float], most: float | None, least: float = 0.0) -> dict:
    """A weighted mean of sites' means and its interval, where only the sites' intervals are known, not their draws.

    error = sqrt(sum_k (w_k error_k)^2) / sum_k w_k, and the interval is that of a normal distribution, cut off at the
    smallest and the largest possible value.

    Args:
        sites: what `site_interval` gave for each.
        weights: the sites' weights.
        most: the largest possible value; None: there is none.
        least: the smallest possible value.
    """
    mean = sum(w * s["mean"] for s, w in zip(sites, weights, strict=True)) / sum(weights)
    if any(s["error"] is None for s in sites):
        return {"mean": mean, "low": None, "high": None}
    error = math.hypot(*(w * s["error"] for s, w in zip(sites, weights, strict=True))) / sum(weights)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return {
        "mean": mean,
        "low": max(mean - reach, least),
        "high": min(mean + reach, math.inf if most is None else most),
    }


def _interval(mean: float, means: np.ndarray, sites: list[Resampled]) -> dict:
    if any(s.patients < 2 for s in sites):
        return {"mean": mean, "low": None, "high": None}
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"mean": mean, "low": float(low), "high": float(high)}
