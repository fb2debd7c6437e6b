"""The ensemble: the output is a mixture of all models, and the selector learns through its loss.

    h(x) = sum_{k=0..K} yhat_k h_k(x),   yhat = softmax(f_s(w_s; x)),   h_0 = sigmoid of the global network,
                                                                        h_k = sigmoid of the personal one of site k
    site k:  w_s <- Adam(w_s, eta_s, grad L(h(x), y))     for every batch, all h fixed
    server:  w_s <- sum_k (n_k / n) w_{s,k}

Xu et al., CVPR 2022, "Ensemble": the paper's negative example, kept as an ablation. Every site needs all K + 1
networks in every round. Two of them come with their own tracks, so the selector's track sends w_s and the (K - 1) w of
the other sites. The paper assumes networks that are already trained; here the selector learns at the same time, from
the networks of each round, so that no rounds are added. The super model takes each network's best round, a combination
that the selector has never seen as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy, part, prefixed
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.selectors.inference import mix
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.learner import SegmentationLoss, dice_report
from fedsm.tracks.segmentation import SegmentationClient
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorServer


class EnsembleClient(SelectorClient):
    """A VGG-11 that learns to mix the global and the personal networks."""

    output_offset = 1  # output 0 is the global network's weight

    def __init__(self, *args: Any):
        super().__init__(*args)
        models = self.output_offset + self.site.n_sites
        self._nets = [build_unet(self.settings.task).to(self.site.device).eval() for _ in range(models)]
        self._mixture_loss = SegmentationLoss(self.settings.loss, logits=False)

    def receive(self, phase: Phase, payload: Tensors) -> None:
        super().receive(phase, part("net", payload))
        models = [part(f"model/{k}", payload) for k in range(self.site.n_sites)]
        models[self.site.index] = self._received_by("personal")
        models.insert(0, self._received_by("global"))
        for net, weights in zip(self._nets, models, strict=True):
            net.load_state_dict(weights)
        self._alike = all(torch.equal(w[key], models[0][key]) for w in models[1:] for key in w)

    def _received_by(self, name: str) -> Tensors:
        track = self.site.tracks[name]
        assert isinstance(track, SegmentationClient)  # `EnsembleServer.check` holds it
        return track.received

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        if not self._alike:
            return super().step(images, labels, rows)
        # Equal networks, as in round 1: the gradient is 0 except for rounding noise, which Adam would turn into steps.
        with torch.no_grad():
            return self.loss(images, labels, rows)

    def mixture(self, images: torch.Tensor) -> torch.Tensor:
        """The mixture's probabilities (B, L, H, W)."""
        with torch.no_grad():
            logits = torch.stack([net(images) for net in self._nets])
        return mix(self.learner.forward(images).softmax(1), logits.sigmoid().nan_to_num(0.0))

    def loss(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """The loss of the mixture."""
        return self._mixture_loss(self.mixture(images), labels)

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """Dice of the mixture."""
        return dice_report(self.net, self.mixture, batches, threshold=0.5)


class EnsembleServer(SelectorServer):
    """FedAvg of the selectors; sites that did not answer take no part."""

    output_offset = 1

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._models: list[Tensors] = []  # as they were when the round began

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        if settings.tracks.get("personal", {}).get("kind") != "softpull":
            raise UserError("the ensemble mixes personal networks that travel in every round", remedy="use softpull")
        if settings.ema:
            raise UserError("the ensemble mixes the networks of the round, not their averages", remedy="set ema to 0")
        if not {"global", "personal"} <= set(list(settings.tracks)[:2]):  # it looks at what these have received
            raise UserError(
                "the ensemble mixes the networks of `global` and `personal`", remedy="list both tracks before it"
            )

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:
        """Copies the networks: the personal track changes its own as sites answer, while others still download."""
        self._models = [copy(weights) for weights in self._networks(TRAIN)]

    def _networks(self, phase: Phase) -> list[Tensors]:
        return [self.tracks["personal"].payload(phase, site) for site in self.sites]

    def payload(self, phase: Phase, site: str) -> Tensors:
        """The selector, and the personal networks of the other sites."""
        networks = self._models if phase == TRAIN and self._models else self._networks(phase)
        models = prefixed("net", self.weights)
        for k, weights in enumerate(networks):
            models |= prefixed(f"model/{k}", weights) if self.sites[k] != site else {}
        return models

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self._models = []
        return super().close(phase, reports)
