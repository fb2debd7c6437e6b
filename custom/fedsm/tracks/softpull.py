"""SoftPull: the personal track of FedSM.

    w_{p,k} <- lam * w_{p,k} + (1 - lam) / (K - 1) * sum_{j != k} w_{p,j},      lam in [1/K, 1]

Xu et al., CVPR 2022, eq. 10 and Algorithm 1, line 16. lam = 1/K is plain averaging, lam = 1 is local training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import Field

from fedsm.core.errors import UserError
from fedsm.core.model import EXPECTED
from fedsm.core.settings import JobSettings
from fedsm.core.state import add_, copy
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import TRAIN, Phase, Report, ServerTrack
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.site_networks import NetworkPerSite

_BLOCK = 128 * 1024  # entries pulled at a time


def check_lam(lam: float, n_sites: float) -> None:
    """Refuses a lam outside [1/K, 1].

    Raises:
        UserError: with the range allowed.
    """
    if not isinstance(lam, (int, float)) or not math.isfinite(lam) or not max(1 / n_sites - 1e-9, 1e-9) <= lam <= 1:
        known = f" = [{1 / n_sites:.4g}, 1] for {n_sites} sites" if math.isfinite(n_sites) else ""
        raise UserError(f"lam must be in [1/K, 1]{known}, got {lam}")


def soft_pull_(weights: list[Tensors], lam: float) -> None:
    """Pulls K' models towards each other, in place.

    The pull is linear: with m the mean of all K' models, `lam * w_k + (1 - lam) / (K' - 1) * (K' m - w_k)`
    equals `w_k + t (m - w_k)` with `t = (1 - lam) K' / (K' - 1)`. So one mean serves all sites: O(K') work and
    one small buffer. Integer buffers are not pulled. With one model nothing is pulled.

    Args:
        weights: the models that answered.
        lam: weight of a site's own model.
    """
    count = len(weights)
    if count < 2:
        return
    t = (1 - lam) * count / (count - 1)
    blocks = list(_blocks(weights[0]))
    scratch: dict[torch.dtype, torch.Tensor] = {}
    for dtype in {dtype for dtype, _ in blocks}:
        largest = max(sum(weights[0][k].numel() for k in keys) for d, keys in blocks if d == dtype)
        scratch[dtype] = torch.empty(largest, dtype=dtype)
    for dtype, keys in blocks:
        models = [[w[k] for k in keys] for w in weights]
        sizes = [v.numel() for v in models[0]]
        parts = torch.split(scratch[dtype][: sum(sizes)], sizes)
        mean = [m.view(v.shape) for m, v in zip(parts, models[0], strict=True)]
        torch._foreach_copy_(mean, models[0])
        for values in models[1:]:
            torch._foreach_add_(mean, values)
        torch._foreach_div_(mean, count)
        for values in models:
            torch._foreach_lerp_(values, mean, t)


def _blocks(tensors: Tensors) -> Iterator[tuple[torch.dtype, list[str]]]:
    """The float entries in blocks of one dtype: small ones together, so that fewer calls are made, and large ones
    each in a block of its own, so that it stays in the processor's cache between the mean and the pull."""
    by_dtype: dict[torch.dtype, list[str]] = {}
    for key, value in tensors.items():
        if not value.is_floating_point():
            continue
        keys = by_dtype.setdefault(value.dtype, [])
        if keys and sum(tensors[k].numel() for k in keys) + value.numel() > _BLOCK:
            yield value.dtype, list(keys)
            keys.clear()
        keys.append(key)
    yield from ((dtype, keys) for dtype, keys in by_dtype.items() if keys)


class SoftPullOptions(TrackOptions):
    """Options of `softpull`."""

    lam: float | None = Field(
        default=None, json_schema_extra={EXPECTED: "in [1/K, 1]"},
        description="The weight of a site's own model in the pull, in [1/K, 1]; default: the task's `lam`.",
    )  # fmt: skip


class SoftPullServer(NetworkPerSite, ServerTrack):
    """K personal networks, pulled towards each other after each round.

    All start as copies of the global one (the same seed). A site's update is added to its own model as it
    arrives, so only the K models are held. Sites that did not answer keep their model and take no part in the
    pull.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lam = self.options.get("lam", self.settings.task.lam)
        first = initial_weights(lambda: build_unet(self.settings.task), self.settings.seed)
        self.weights = {site: copy(first) for site in self.sites}
        self._answered: set[str] = set()

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        check_lam(options.get("lam", settings.task.lam), n_sites)

    def payload(self, phase: Phase, site: str) -> Tensors:
        return self.weights[site]

    def expects(self, phase: Phase) -> Tensors:
        return self.weights[self.sites[0]] if phase == TRAIN else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        add_(self.weights[site], tensors)
        self._answered.add(site)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            soft_pull_([self.weights[s] for s in self.sites if s in self._answered], self.lam)
            self._answered = set()
        return {}

    def files(self) -> dict[str, Tensors]:
        return {f"{self.name}.{site}": w for site, w in self.weights.items()}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.weights = {site: files[f"{self.name}.{site}"] for site in self.sites}
        self._answered = set()

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site's personal model starts as the global one."""
        if "global" not in files:
            raise UserError("softpull starts a new site's personal model from the track `global`, and there is none")
        files |= {f"{self.name}.{site}": copy(files["global"]) for site in new}
        return []

    def models(self) -> dict[str, list[str]]:
        """A personal model is scored by its own site alone."""
        return {f"{self.name}.{site}": [site] for site in self.sites}
