"""SoftPull: the personal track of FedSM.

    w_{p,k} <- lam * w_{p,k} + (1 - lam) / (K - 1) * sum_{j != k} w_{p,j},      lam in [1/K, 1]

Xu et al., CVPR 2022, eq. 10 and Algorithm 1, line 16. lam = 1/K is plain averaging, lam = 1 is local training.

Some options go beyond the paper. `pull: similarity` has each site pulled more by sites that are like it,

    w_{p,k} <- lam * w_{p,k} + (1 - lam) * sum_{j != k} p_kj w_{p,j},           sum_j p_kj = 1

with p from the statistics selector's sums, which the server has from the registration: nothing else is sent
(`selectors/similarity.py`). All sites equally alike is SoftPull. `pull: global` takes the global model that this round
has made in place of the others' mean: w_{p,k} <- lam * w_{p,k} + (1 - lam) * w_g. `norm: own` is FedBN's idea: entries
of norm layers are not pulled, each site keeps its own (a U-Net whose norm layers have no entries is pulled whole).
`alone: a` pulls nothing in the last a R of R rounds: lam is 1 there, and each site's model ends with local training,
from what the pull has made of it. alone = 0 is SoftPull.

The job's `aggregation` takes the place of the mean over the others: w_{p,k} <- lam w_{p,k} + (1 - lam) rule_{j != k}
w_{p,j}, all of one weight (`rules.py`). With `pull: global` the rule has made the global model already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

import torch
from pydantic import Field

from fedsm.core.errors import UserError
from fedsm.core.model import EXPECTED
from fedsm.core.model_store import editing, opened, stored
from fedsm.core.settings import JobSettings
from fedsm.core.state import add_, copy
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.selectors.descriptor import ENCODER
from fedsm.selectors.similarity import pull_shares, similarities
from fedsm.tracks import pull_in_place, pull_on_disk
from fedsm.tracks.base import TRAIN, Phase, Report, ServerTrack
from fedsm.tracks.fedbn import unet_norm_entries
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.rules import rule_of
from fedsm.tracks.selector_statistics import StatisticsServer
from fedsm.tracks.site_networks import NetworkPerSite

UNIFORM, SIMILARITY, GLOBAL, OWN = "uniform", "similarity", "global", "own"
_EQUAL = 1e-12  # between shares


def check_lam(lam: float, n_sites: float) -> None:
    """Refuses a lam outside [1/K, 1].

    Raises:
        UserError: with the range allowed.
    """
    if not isinstance(lam, (int, float)) or not math.isfinite(lam) or not max(1 / n_sites - 1e-9, 1e-9) <= lam <= 1:
        known = f" = [{1 / n_sites:.4g}, 1] for {n_sites} sites" if math.isfinite(n_sites) else ""
        raise UserError(f"lam must be in [1/K, 1]{known}, got {lam}")


def _all_alike(shares: torch.Tensor) -> bool:
    others = shares[~torch.eye(len(shares), dtype=torch.bool)]
    return (others.max() - others.min()).item() < _EQUAL


class SoftPullOptions(TrackOptions):
    """Options of `softpull`."""

    lam: float | None = Field(
        default=None, json_schema_extra={EXPECTED: "in [1/K, 1]"},
        description="The weight of a site's own model in the pull, in [1/K, 1]; default: the task's `lam`.",
    )  # fmt: skip
    pull: Literal["uniform", "similarity", "global"] = Field(
        default="uniform",
        description="What a site is pulled towards: the mean of the others (`uniform`, the paper's), a mean in which"
        " sites with similar images weigh more (`similarity`, which needs a statistics selector), or the global model"
        " (`global`).",
    )
    norm: Literal["pulled", "own"] = Field(
        default="pulled",
        description="Whether norm layers are pulled as everything else is (`pulled`, the paper's) or stay the site's"
        " own.",
    )
    alone: float = Field(
        default=0.0, ge=0, le=1,
        description="Part of the rounds, the last ones, in which nothing is pulled: each site's model trains on alone."
        " 0: the paper's.",
    )  # fmt: skip


class SoftPullServer(NetworkPerSite, ServerTrack):
    """K personal networks, pulled towards each other after each round.

    All start as copies of the global one (the same seed). A site's update is added to its own model as it
    arrives, so only the K models are held: in memory, or in files (`personal_models`). Sites that did not answer keep
    their model and take no part in the pull: the shares of the others are taken anew over those that did.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lam = self.options.get("lam", self.settings.task.lam)
        first = initial_weights(lambda: build_unet(self.settings.task), self.settings.seed)
        models = self.store.copies(map(self._file, self.sites), first)
        self._hold({site: models[self._file(site)] for site in self.sites})
        self._rule = rule_of(self.settings)
        self._answered: set[str] = set()
        self._pulls = True
        self._held = unet_norm_entries(self.settings.task) if self.options["norm"] == OWN else frozenset()

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        check_lam(options.get("lam", settings.task.lam), n_sites)
        selector = settings.tracks.get("selector", {})
        early = selector.get("kind") == "selector_statistics" and selector.get("descriptor") != ENCODER
        if options["pull"] == SIMILARITY and not early:
            raise UserError(
                "softpull's `pull: similarity` compares the sums that a statistics selector has before round 1",
                remedy="selector `statistics` with the descriptor `image` or `image+random`, or `pull: uniform`",
            )
        if options["pull"] == SIMILARITY and rule_of(settings).needs_single_updates:
            raise UserError(
                "softpull's `pull: similarity` is a mean with shares of its own, and aggregation"
                f" {settings.aggregation!r} another rule",
                remedy="leave one of them out",
            )

        order = list(settings.tracks)
        if options["pull"] == GLOBAL and "global" not in order[: order.index("personal")]:
            raise UserError("softpull's `pull: global` needs the track `global`", remedy="list it before `personal`")

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:
        others = max(track.options.get("rounds", 0) for track in self.tracks.values())  # a selector's own, at the end
        self._pulls = number <= round((1 - self.options["alone"]) * (self.settings.rounds - others))

    def _hold(self, weights: dict[str, Tensors]) -> None:
        self.weights = weights
        self._like = opened(weights[self.sites[0]])

    def _file(self, site: str) -> str:
        return f"{self.name}.{site}"

    def payload(self, phase: Phase, site: str) -> Tensors:
        return opened(self.weights[site])

    def expects(self, phase: Phase) -> Tensors:
        return self._like if phase == TRAIN else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        with editing(self.weights[site]) as own:
            add_(own, tensors)
        self._answered.add(site)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            if self._pulls and self._answered:
                self._pull([s for s in self.sites if s in self._answered])
            self._answered = set()
        return {}

    def _pull(self, sites: list[str]) -> None:
        models = [self.weights[s] for s in sites]
        files = [file for model in models if (file := stored(model))]
        how: Any = pull_on_disk if files else pull_in_place
        if self.options["pull"] == GLOBAL:
            how.pull_to_(files or models, self.tracks["global"].payload(TRAIN, self.sites[0]), self.lam, self._held)
            return
        shares = self._shares(sites)
        if shares is not None and not _all_alike(shares):
            how.weighted_pull_(files or models, self.lam, shares, self._held)
        elif files:
            pull_on_disk.soft_pull_(files, self.lam, self._held)
        else:
            self._rule.pull(models, self.lam, self._held)

    def _shares(self, sites: list[str]) -> torch.Tensor | None:
        """(K', K') what each of these sites is pulled towards; None: not by similarity, or there is nothing to pull."""
        if self.options["pull"] != SIMILARITY or len(sites) < 2:
            return None
        selector = self.tracks["selector"]
        assert isinstance(selector, StatisticsServer)  # `check` holds it
        rows = torch.tensor([self.sites.index(site) for site in sites])
        similarity = similarities(selector.site_distances())[rows[:, None], rows]
        return pull_shares(similarity, self.settings.max_share)

    def held(self) -> Set[str]:
        return self._held

    def facts(self) -> dict[str, Any]:
        """`pull`: site -> other site -> its share in what pulls the first when all answer."""
        if (shares := self._shares(self.sites)) is None:
            return {}
        rows = dict(zip(self.sites, shares.tolist(), strict=True))
        named = {site: zip(self.sites, row, strict=True) for site, row in rows.items()}
        return {"pull": {site: {o: round(p, 4) for o, p in row if o != site} for site, row in named.items()}}

    def files(self) -> dict[str, Tensors]:
        return {self._file(site): w for site, w in self.weights.items()}

    def load_files(self, files: dict[str, Tensors]) -> None:
        names = {site: self._file(site) for site in self.sites}
        self._hold({site: self.store.adopt(name, files[name]) for site, name in names.items()})
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
