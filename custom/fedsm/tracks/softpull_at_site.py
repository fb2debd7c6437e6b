"""SoftPull with the personal networks at their sites: the server knows their mean alone.

    site k:  x_k = w_k - m                        after a round's training; m: the mean that came down
    server:  m  <- m + 1/K' sum_k x_k             over the K' sites whose networks are in the mean
    site k:  w_k <- lam w_k + (1 - lam) / (K' - 1) (K' m - w_k)      before the next round, if it is in the mean

This is SoftPull (`softpull.py`): K' m - w_k is the sum of the others. The server needs no single x_k, so `secure_sum`
can hide them; without it, the server could take off what it knows and have each w_k, as with `softpull`. Each site
keeps its network on its disk, remembers its best version, and hands that one over once, after the last round, because
the super model holds it. At first m and all w_k are the first weights.

A site that did not answer a round, or whose answer did not come in, goes on from its own network as it last trained it.
It is pulled only towards a mean that holds just this network: so if it misses a round, it is not pulled after it, and
the pull of the round before is lost to it, where `softpull` has made it at the server. With `fraction` that would be
nearly every pull, so the two are refused together. `pull: similarity` is not
possible: it needs another sum for every site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Literal

import torch
from pydantic import Field

from fedsm.core.model import EXPECTED
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy, moved_towards, part, prefixed, subtract, without
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.fedbn import unet_norm_entries
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.shared_network import SharedNetwork
from fedsm.tracks.site_personal import SitePersonalClient, SitePersonalServer
from fedsm.tracks.softpull import OWN, check_lam

_MEAN, _COUNT, _MADE, _NOW = "mean", "count", "made", "now"  # of the payload; the last two are rounds
_TRAINED = "trained_in"
_PULL, _SITES = "at.sites", "sites"  # of a checkpoint's files: no site's name has a dot


class SoftPullAtSiteOptions(TrackOptions):
    """Options of `softpull_at_site`: as those of `softpull`."""

    lam: float | None = Field(
        default=None, json_schema_extra={EXPECTED: "in [1/K, 1]"},
        description="The weight of a site's own model in the pull, in [1/K, 1]; default: the task's `lam`.",
    )  # fmt: skip
    norm: Literal["pulled", "own"] = Field(
        default="pulled", description="Whether norm layers are pulled as everything else is, or stay the site's own."
    )
    alone: float = Field(
        default=0.0, ge=0, le=1,
        description="Part of the rounds, the last ones, in which nothing is pulled: each site's model trains on alone.",
    )  # fmt: skip


def pulled(own: Tensors, mean: Tensors, count: int, lam: float, held: Set[str] = frozenset()) -> Tensors:
    """lam w_k + (1 - lam) / (K' - 1) (K' m - w_k) = w_k + t (m - w_k) with t = (1 - lam) K' / (K' - 1), as new tensors.

    Args:
        own: w_k, which is in the mean.
        mean: m.
        count: K'; with less than two nothing is pulled.
        lam: weight of a site's own model.
        held: entries that stay as they are.
    """
    if count < 2:
        return copy(own)
    return moved_towards(own, {k: v for k, v in mean.items() if k not in held}, (1 - lam) * count / (count - 1))


class SoftPullAtSiteClient(SitePersonalClient):
    """Pulls its own network towards the mean, trains it, and sends how far it is from the mean."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._lam = float(self.options.get("lam", self.settings.task.lam))
        self._held = unet_norm_entries(self.settings.task) if self.options["norm"] == OWN else frozenset()
        self._mean: Tensors = {}
        self._trained: Tensors = {}  # w_k as a round left it, and which round
        self._trained_in = self._now = 0

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Takes the mean. A site without a past starts as it, or as this round's global model."""
        self._mean = part(_MEAN, payload)
        if self._fresh:
            self.start(self._mean)
        super().receive(phase, payload)
        plain = {key: int(value) for key, value in without(_MEAN, payload).items()}
        self._now = plain[_NOW]
        if self._trained_in and self._trained_in == plain[_MADE]:
            self.start(pulled(self._trained, self._mean, plain[_COUNT], self._lam, self._held))

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase == TRAIN:
            self._trained, self._trained_in = copy(self.net.state_dict()), self._now
            return subtract(self._trained, self._mean)
        return super().send(phase, training_images)

    def state(self) -> Tensors:
        return super().state() | {_TRAINED: torch.tensor(self._trained_in)}

    def load_state(self, state: Tensors) -> None:
        super().load_state(state)
        self._trained, self._trained_in = copy(self.net.state_dict()), int(state.get(_TRAINED, 0))


class SoftPullAtSiteServer(SitePersonalServer):
    """Holds the mean of the networks, and who is in it; waits for the networks themselves as `SitePersonalServer`.

    Sites that did not answer a round are not in its mean, and are told so: they are not pulled towards it.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.network = SharedNetwork(copy(self.delivered.first), self.sites)
        self._answered: list[str] = []
        self._in_mean: list[str] = []
        self._count = self._made = self._number = 0  # K', the round of the mean, and the present one
        self._pulls = True

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        check_lam(options.get("lam", settings.task.lam), n_sites)

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:
        self._number = number
        others = max(track.options.get("rounds", 0) for track in self.tracks.values())  # a selector's own, at the end
        self._pulls = number <= round((1 - self.options["alone"]) * (self.settings.rounds - others))

    def payload(self, phase: Phase, site: str) -> Tensors:
        """The mean, how many networks are in it (0 for a site whose own is not), and of which round they are."""
        plain = {_COUNT: self._count if site in self._in_mean else 0, _MADE: self._made, _NOW: self._number}
        return prefixed(_MEAN, self.network.weights) | {key: torch.tensor(value) for key, value in plain.items()}

    def expects(self, phase: Phase) -> Tensors:
        return self.network.weights if phase == TRAIN else super().expects(phase)

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        """Every network weighs the same, as in SoftPull."""
        if phase == TRAIN:
            self.network.add(site, tensors, 1.0)
            self._answered.append(site)
        else:
            super().accept(phase, site, tensors, weight)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN and self._answered:
            self.network.close()
            self._in_mean = self._answered if self._pulls else []
            self._count, self._made = len(self._in_mean), self._number
            self._answered = []
        return super().close(phase, reports)

    def held(self) -> Set[str]:
        return unet_norm_entries(self.settings.task) if self.options["norm"] == OWN else frozenset()

    def files(self) -> dict[str, Tensors]:
        members = torch.tensor([site in self._in_mean for site in self.sites])
        plain = {_SITES: members, _COUNT: torch.tensor(self._count), _MADE: torch.tensor(self._made)}
        return super().files() | {f"{self.name}.{_PULL}.mean": self.network.weights, f"{self.name}.{_PULL}": plain}

    def load_files(self, files: dict[str, Tensors]) -> None:
        super().load_files(files)
        self.network = SharedNetwork(files[f"{self.name}.{_PULL}.mean"], self.sites)
        plain = files[f"{self.name}.{_PULL}"]
        self._in_mean = [site for site, member in zip(self.sites, plain[_SITES].tolist(), strict=True) if member]
        self._count, self._made = int(plain[_COUNT]), int(plain[_MADE])
        self._answered = []

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site's network is made at the site, from the global model; it is in no mean yet."""
        plain = files[f"{self.name}.{_PULL}"]
        plain[_SITES] = torch.cat([plain[_SITES], torch.zeros(len(new), dtype=torch.bool)])
        return super().join(files, new)

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        """The mean of the last round still holds its network; the next round's does not."""
        plain, k = files[f"{self.name}.{_PULL}"], self.sites.index(site)
        plain[_SITES] = torch.cat([plain[_SITES][:k], plain[_SITES][k + 1 :]])
        super().leave(files, site)
