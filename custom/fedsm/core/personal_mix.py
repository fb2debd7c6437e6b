"""A site's personal model mixed with the others', after training: what server and site must compute alike.

    w_k(a) = (1 - a) w_k + a / (K - 1) * sum_{j != k} w_j  =  w_k + t (m - w_k),      t = a K / (K - 1)

with m the mean of all K personal models: one m serves all sites, as in SoftPull. a = 0 is the model as it was trained,
a = 1 the mean of the others alone. `personal_mix` of the settings lists the shares a that each site tries on its
validation images (`client/personal_mix.py`); the server takes the best of each site (`server/personal_mix.py`).
"""

from __future__ import annotations

from fedsm.core.settings import JobSettings
from fedsm.core.state import moved_towards
from fedsm.core.tensors import Tensors

OWN, MEAN = "own", "mean"  # what a site is sent: its own model, and m without what is each site's own


def shares_of(settings: JobSettings) -> list[float]:
    """The shares a that are tried, 0 among them, in ascending order; empty: none."""
    return sorted({0.0, *settings.personal_mix}) if settings.personal_mix else []


def mixed(own: Tensors, mean: Tensors, share: float, count: int) -> Tensors:
    """w_k(a) as new tensors. Entries that `mean` does not have, and integers, are the site's own.

    Args:
        own: w_k.
        mean: m.
        share: a.
        count: K, at least 2.
    """
    return moved_towards(own, mean, share * count / (count - 1))
