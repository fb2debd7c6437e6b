"""Differentially private sums for the statistics selector, made at the site, image by image.

A filter that sees only the sums cannot bound what one image adds to them: the clipping must come before the sum. So
this is done where the descriptors are, not in a FLARE filter. With d(x) the descriptor `image` and C the clip norm:

    u  = (d(x) - centre) / scale                public constants (`image_scale`): one unit is a usual spread
    u <- u min(1, C / |u|)
    w  = (u / C, vec(u u^T) / C^2)              vec keeps the norm: off-diagonal entries once, times sqrt 2
    W  = sum_images w + N(0, sigma^2 I)

Neighbours are two data sets that differ in one image (their number n is known: it is part of every answer). For
|u|, |v| <= C at an angle with cosine t, |w - w'|^2 <= 2 - 2t + 2 - 2t^2, at most 9/2 where t = -1/2: the L2
sensitivity is 3 / sqrt 2. sigma is the smallest that gives (epsilon, delta), by the analytic Gaussian mechanism
(Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018), good for every epsilon > 0.

What is left is postprocessing, which costs no privacy. The noise on the covariance is a symmetric Gaussian matrix whose
largest eigenvalue is near `edge` (Wigner): an eigenvalue below that says nothing and becomes min(edge, 1), where 1 is
the usual variance. So the covariance is positive definite at any epsilon. The sums go back to the units of d(x), where
values that the noise made impossible (`possible_sums`) are moved back into their bounds. The server need not know that
they are private.

(epsilon, delta) is that of these sums alone: weights, losses and scores leave the site beside them. Releases add up
(basic composition): their sum of epsilon stays within the site's budget, in this run and all later ones.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from fedsm.core.errors import UserError
from fedsm.core.files import write_bytes
from fedsm.core.tensors import Tensors
from fedsm.selectors.descriptor import image_range, image_scale
from fedsm.selectors.gaussian import pack, unpack
from fedsm.selectors.possible_sums import made_possible
from fedsm.selectors.releases import locked

SENSITIVITY = 3 / math.sqrt(2)
_KEY = re.compile(r"[0-9a-f]{32}")  # how the file of a release is named

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatisticsPrivacy:
    """The privacy that a site asks for.

    Attributes:
        epsilon: the privacy loss, at most 100.
        delta: the probability beyond which it holds; well below 1 / images.
        clip: C, the largest norm of one image's scaled descriptor. A small one needs less noise: of 3, 4, 6, 8
            and 12 the first two did best on the synthetic sites, where the norm is 13 to 17 in the middle.
        budget: limit on the sum of epsilon over all releases; None: one release.
    """

    epsilon: float
    delta: float
    clip: float = 4.0
    budget: float | None = None

    @property
    def total(self) -> float:
        """The budget as a number."""
        return self.epsilon if self.budget is None else self.budget


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

    New noise on the same images would reveal more about them. So what was sent is kept in a folder of the site and sent
    again, in this run and later ones, as long as the images and the settings are the same. The files in this folder
    are also the record of the budget spent: each is written before its sums are sent, and holds its epsilon.

    Args:
        privacy: the privacy that the site asks for.
        folder: where the sums that were sent are kept.
        site: named in errors.
    """

    def __init__(self, privacy: StatisticsPrivacy, folder: Path, site: str = ""):
        self.privacy = privacy
        self.sigma = gaussian_sigma(privacy.epsilon, privacy.delta, SENSITIVITY)
        self._folder = folder
        self._site = site

    def report(self) -> dict[str, Any]:
        """For results.json. `releases`: how many different sums the site has sent so far; their losses add up."""
        p = self.privacy
        numbers = {"epsilon": p.epsilon, "delta": p.delta, "sigma": self.sigma, "clip": p.clip, "budget": p.total}
        return numbers | {"releases": len(self._kept())}

    def __call__(self, rows: torch.Tensor, channels: int, key: str = "") -> Tensors:
        """(N, D) descriptors `image` of images of so many channels to `n`, `sum` and `outer`.

        Args:
            rows: the descriptors.
            channels: of the images.
            key: names the images and the descriptor (`sums_key`), so that rounding which differs from machine to
                machine makes no second release. Empty: the rows themselves do.

        Raises:
            UserError: the budget is spent.
        """
        p = self.privacy
        about = repr((p.epsilon, p.delta, p.clip)).encode() + (key.encode() or rows.numpy().tobytes())
        bounds = image_range(channels)
        kept = self._folder / f"{hashlib.sha256(about).hexdigest()[:32]}.safetensors"
        with locked(self._folder / "lock", self._site):
            if kept.is_file():
                return made_possible(self._load(kept), bounds)
            spent = sum(self._epsilon(file) for file in self._kept())
            if spent + p.epsilon > p.total * (1 + 1e-9):
                message = (
                    f"the privacy budget of the statistics is spent: epsilon {spent:g} of {p.total:g}, and new sums"
                    f" would cost {p.epsilon:g} more"
                )
                raise UserError(
                    f"{message} ({self._folder})",
                    site=self._site,
                    remedy="ask for a job that needs no new sums, or, if the patients' privacy allows it, raise"
                    " `budget` of statistics_privacy in fedsm_site.yaml",
                    public=message,
                )
            sums = made_possible(self._release(rows, *image_scale(channels)), bounds)
            # Before it is sent: a site that is killed in between must not draw new noise.
            write_bytes(kept, save(sums, {"epsilon": repr(p.epsilon), "delta": repr(p.delta)}))
        log.info("site %r: new private sums for the server, epsilon %g of %g", self._site, spent + p.epsilon, p.total)
        return sums

    def _kept(self) -> list[Path]:
        """The files of all releases so far."""
        return [path for path in self._folder.glob("*.safetensors") if _KEY.fullmatch(path.stem)]

    def _load(self, kept: Path) -> Tensors:
        try:
            sums: Tensors = load_file(kept)
            return sums
        except (OSError, SafetensorError) as e:
            raise UserError(
                f"cannot be read ({e})",
                site=self._site,
                file=kept,
                remedy="restore it from a backup: it holds the sums that were sent, and new ones would be a second"
                " release",
            ) from e

    def _epsilon(self, kept: Path) -> float:
        """The epsilon of a release; a file that does not hold it counts with the present epsilon."""
        try:
            with safe_open(kept, "pt") as file:
                return float((file.metadata() or {})["epsilon"])
        except (OSError, SafetensorError, KeyError, ValueError):
            return self.privacy.epsilon

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
    """The covariance in which eigenvalues below the noise are replaced by a floor."""
    values, vectors = torch.linalg.eigh(covariance)
    values = torch.where(values > edge, values, min(edge, 1.0))
    projected: torch.Tensor = (vectors * values) @ vectors.T
    return projected
