"""Differentially private sums for the statistics selector, made at the site, image by image.

A filter that sees only the sums cannot bound what one image adds to them: the clipping must come before the sum. So
this is done where the descriptors are, not in a FLARE filter. With d(x) the descriptor `image` and C the clip norm:

    u  = (d(x) - centre) / scale                public constants (`image_scale`): one unit is a usual spread
    u <- u min(1, C / |u|)
    w  = (u / C, vec(u u^T) / C^2)              vec keeps the norm: off-diagonal entries once, times sqrt 2
    W  = sum_images w + N(0, sigma^2 I)

Neighbours are two sites of which one image differs (their number n is known: it leaves with every answer). For
|u|, |v| <= C at an angle with cosine t, |w - w'|^2 <= 2 - 2t + 2 - 2t^2, at most 9/2 where t = -1/2: the L2
sensitivity is 3 / sqrt 2. sigma is the smallest that gives (epsilon, delta), by the analytic Gaussian mechanism
(Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018), good for every epsilon > 0.

What is left is postprocessing, which costs no privacy. The noise on the covariance is a symmetric Gaussian matrix whose
largest eigenvalue is near `edge` (Wigner): an eigenvalue below that tells nothing and becomes min(edge, 1), where 1 is
the usual variance. So the covariance is positive definite at any epsilon. The sums go back to the units of d(x), and
the server need not know that they are private.

(epsilon, delta) is that of these sums alone: weights, losses and scores leave the site beside them.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from fedsm.tracks.base import Tensors
from fedsm.tracks.descriptor import image_scale
from fedsm.tracks.gaussian import pack, unpack

SENSITIVITY = 3 / math.sqrt(2)


@dataclass(frozen=True)
class StatisticsPrivacy:
    """What a site asks for.

    Attributes:
        epsilon: the privacy loss, at most 100.
        delta: the probability beyond which it holds; well below 1 / images.
        clip: C, the largest norm of one image's scaled descriptor. A small one needs less noise: of 3, 4, 6, 8
            and 12 the first two did best on the synthetic sites, where the norm is 13 to 17 in the middle.
    """

    epsilon: float
    delta: float
    clip: float = 4.0


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float) -> float:
    """The delta that Gaussian noise gives at an epsilon (Balle and Wang, theorem 8)."""
    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return _normal(a - b) - math.exp(epsilon) * _normal(-a - b)


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest standard deviation that gives (epsilon, delta), to nine digits and never below."""
    low, high = 0.0, sensitivity
    while gaussian_delta(high, epsilon, sensitivity) > delta:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, epsilon, sensitivity) <= delta else (middle, high)
    return high


def _normal(x: float) -> float:
    """The standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2


class PrivateSums:
    """Makes a site's private sums, and the same ones again when asked again.

    New noise on the same images would be a second look at them: what was sent is kept in a folder of the site and sent
    again, in this run and later ones, as long as the images and the settings are the same.

    Args:
        privacy: what the site asks for.
        folder: where what was sent is kept.
    """

    def __init__(self, privacy: StatisticsPrivacy, folder: Path):
        self.privacy = privacy
        self.sigma = gaussian_sigma(privacy.epsilon, privacy.delta, SENSITIVITY)
        self._folder = folder

    def report(self) -> dict:
        """What the results say. `releases`: how many different sums the site has sent so far; the loss adds up."""
        p = self.privacy
        releases = len(list(self._folder.glob("*.safetensors")))
        return {"epsilon": p.epsilon, "delta": p.delta, "sigma": self.sigma, "clip": p.clip, "releases": releases}

    def __call__(self, rows: torch.Tensor, channels: int) -> Tensors:
        """(N, D) descriptors `image` of images of so many channels to `n`, `sum` and `outer`."""
        key = hashlib.sha256(repr(self.privacy).encode() + rows.numpy().tobytes()).hexdigest()[:32]
        kept = self._folder / f"{key}.safetensors"
        if kept.is_file():
            return load_file(kept)
        sums = self._release(rows, *image_scale(channels))
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        save_file(sums, partial)
        os.replace(partial, kept)  # before it is sent: a site that dies in between must not draw again
        return sums

    def _release(self, rows: torch.Tensor, centre: torch.Tensor, scale: torch.Tensor) -> Tensors:
        n, size = rows.shape
        clip = self.privacy.clip
        unit = (rows - centre) / scale
        unit = unit * (clip / unit.norm(dim=1, keepdim=True)).clamp(max=1)
        mean = (unit.sum(0) + clip * self._noise(size)) / n
        outer = unpack(pack(unit.T @ unit) + clip**2 * self._noise(size * (size + 1) // 2) * _weights(size), size)
        noise = self.sigma * clip**2 / n  # standard deviation of a diagonal entry; off it, smaller by sqrt 2
        covariance = _without_noise(outer / n - torch.outer(mean, mean), edge=noise * math.sqrt(2 * size))
        back = torch.outer(scale, scale)
        mean = mean * scale + centre
        return {
            "n": torch.tensor(float(n), dtype=torch.float64),
            "sum": n * mean,
            "outer": pack(n * (covariance * back + torch.outer(mean, mean))),
        }

    def _noise(self, size: int) -> torch.Tensor:
        """Fresh noise, seeded by the operating system: not by the job's seed, which the server knows."""
        return torch.from_numpy(np.random.default_rng().normal(0, self.sigma, size))


def _weights(size: int) -> torch.Tensor:
    """What turns noise on vec(u u^T) into noise on the packed triangle: 1 on the diagonal, 1 / sqrt 2 off it."""
    rows, columns = torch.triu_indices(size, size)
    return torch.where(rows == columns, 1.0, math.sqrt(0.5)).double()


def _without_noise(covariance: torch.Tensor, edge: float) -> torch.Tensor:
    """The covariance with the eigenvalues that the noise drowns replaced by a floor."""
    values, vectors = torch.linalg.eigh(covariance)
    values = torch.where(values > edge, values, min(edge, 1.0))
    return (vectors * values) @ vectors.T
