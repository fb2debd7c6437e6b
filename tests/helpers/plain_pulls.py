"""The options of SoftPull as plain formulas, for `plain_loop.algorithm_1`, and the shares of `personal_mix`."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from fedsm.core.dice import dice_per_image
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import load_site
from fedsm.nets import build_unet
from fedsm.selectors.descriptor import build_descriptor
from tests.helpers.plain_loop import average


def similarity(data: Path, settings: JobSettings, sites: list[str]) -> np.ndarray:
    """s_kj = 0.1 + 0.9 exp(-d_kj^2 / (2 h^2)), from all training images in one place."""
    describe = build_descriptor("image", settings, {})
    rows = [describe(load_site(data / s, s, settings)["train"].images[:]).double().numpy() for s in sites]
    means = np.stack([r.mean(0) for r in rows])
    within = np.concatenate([r - r.mean(0) for r in rows])
    covariance = within.T @ within / (len(within) - len(sites))
    deviation = np.sqrt(covariance.diagonal())
    shrunk = 0.9 * covariance / np.outer(deviation, deviation) + 0.1 * np.eye(len(deviation))
    inverse = np.linalg.inv(shrunk)
    count = len(sites)
    d2 = np.zeros((count, count))
    for k in range(count):
        for j in range(count):
            z = (means[k] - means[j]) / deviation
            d2[k, j] = z @ inverse @ z
    h2 = np.median([d2[k, j] for k in range(count) for j in range(k)])
    return 0.1 + 0.9 * np.exp(-d2 / (2 * h2))


def pull_by(s: np.ndarray, here: list[list[int]]):
    """lam w_k + (1 - lam) sum_{j != k} s_kj w_j / sum_{j != k} s_kj over the sites that are here, round by round."""
    rounds = iter(here)

    def pull(w: list[dict], trained: list[dict], lam: float) -> list[dict]:
        sites, pulled = next(rounds), []
        for a, k in enumerate(sites):
            total = sum(s[k, j] for j in sites if j != k)
            parts = [lam if j == k else (1 - lam) * s[k, j] / total for j in sites]
            pulled.append(average(trained, parts))
            assert abs(parts[a] - lam) < 1e-12
        return pulled

    return pull


def keeping(entries: set[str], pull):
    """A pull after which these entries are the site's own."""

    def kept(w: list[dict], trained: list[dict], lam: float) -> list[dict]:
        pulled = pull(w, trained, lam)
        return [p | {k: t[k].clone() for k in entries} for p, t in zip(pulled, trained, strict=True)]

    return kept


def until(last: int, pull):
    """A pull in the first rounds only; afterwards every site keeps what it has trained."""
    rounds = itertools.count(1)
    return lambda w, trained, lam: pull(w, trained, lam) if next(rounds) <= last else trained


def mix(own: dict, others: list[dict], share: float, held: set[str] = frozenset()) -> dict:
    """(1 - a) w_k + a mean_{j != k} w_j; what is held stays."""
    return average([own, *others], [1 - share, *[share / len(others)] * len(others)]) | {k: own[k] for k in held}


@torch.no_grad()
def validation_dice(data: Path, settings: JobSettings, site: str, weights: dict) -> float:
    """Mean Dice over a site's validation images, each image's being the mean over its labels."""
    part, net = load_site(data / site, site, settings)["validation"], build_unet(settings.task).eval()
    net.load_state_dict(weights)
    return dice_per_image(net(part.images[:]) > 0, part.labels[:] > 0).mean(1).mean().item()
