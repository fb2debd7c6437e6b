"""Two models on the same images: the difference of their scores, image by image.

What is hard for one model is hard for the other, too. The difference of each image does not contain that, so a small
gain can be told from chance where the intervals of the two means overlap. Patients are drawn with all their images
(see `bootstrap`), and Wilcoxon's test takes the mean difference of each patient: images of one patient are no
independent witnesses. A p-value is of one comparison; of 20 comparisons of equal models one has p < 0.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsm.evaluation.bootstrap import client_average, pooled, resample, site_interval
from fedsm.evaluation.wilcoxon import signed_rank_p


@dataclass(frozen=True)
class Differences:
    """One site's differences, first model minus second; N of them with the patient of each."""

    values: np.ndarray
    patients: list[str]

    def of_patients(self) -> np.ndarray:
        """The mean difference of each patient."""
        _, group = np.unique(self.patients, return_inverse=True)
        return np.bincount(group, self.values) / np.bincount(group)


def compare(sites: Mapping[str, Differences], seed: int = 0) -> dict:
    """The difference at each site and over all of them.

    Args:
        sites: site -> its differences.
        seed: of the bootstrap.

    Returns:
        `per_site`: site -> `mean`, `low`, `high`, `error`, `p`, `images`, `patients`; `client_avg` and `global`: mean,
        low and high of the mean over sites and over all images; `p`, `images` and `patients` of all sites together.
    """
    drawn = {site: resample(d.values, d.patients, seed, site) for site, d in sites.items()}
    per_site = {
        site: site_interval(drawn[site]) | {"p": signed_rank_p(d.of_patients())} | _counts([d])
        for site, d in sites.items()
    }
    everyone = np.concatenate([d.of_patients() for d in sites.values()])
    averages = {"client_avg": client_average(list(drawn.values())), "global": pooled(list(drawn.values()))}
    return {"per_site": per_site} | averages | {"p": signed_rank_p(everyone)} | _counts(sites.values())


def _counts(sites: Iterable[Differences]) -> dict[str, int]:
    sites = list(sites)
    return {"images": sum(len(d.values) for d in sites), "patients": sum(len(set(d.patients)) for d in sites)}
