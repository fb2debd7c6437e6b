"""The ensemble: the output is a mixture of all models, and the selector learns through its loss.

    h(x) = sum_{k=0..K} yhat_k h_k(x),   yhat = softmax(f_s(w_s; x)),   h_0 = sigmoid of the global network,
                                                                        h_k = sigmoid of the personal one of site k
    site k:  w_s <- Adam(w_s, eta_s, grad L(h(x), y))     for every batch, all h fixed
    server:  w_s <- sum_k (n_k / n) w_{s,k}

Xu et al., CVPR 2022, "Ensemble": the paper's negative example, kept as an ablation. Every site needs all K + 1
networks in every round; two of them come with their own tracks, so the selector's carries the other sites' (K - 1) w
and w_s down. The paper supposes networks that are trained already;
here the selector learns beside them, from those of the round, so that no rounds are added. The super model is made of
each network's best round, a combination that the selector has not seen just so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from monai.losses import DiceLoss

from fedsm.core.dice import dice_per_image
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy, part, prefixed
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.selectors.inference import mix
from fedsm.tracks.base import ClientTrack, ServerTrack
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorFedAvgServer


class EnsembleClient(SelectorClient):
    """A VGG-11 that learns to mix the global and the personal networks."""

    first = 1  # output 0 is the global network's weight

    def __init__(self, *args):
        super().__init__(*args)
        models = self.first + self.n_sites
        self._nets = [build_unet(self.settings.task).to(self.device).eval() for _ in range(models)]
        self._dice_loss = DiceLoss()

    def link(self, tracks: dict[str, ClientTrack]) -> None:
        self._global, self._personal = tracks["global"], tracks["personal"]

    def receive(self, payload: Tensors) -> None:
        super().receive(part("net", payload))
        models = [part(f"model/{k}", payload) for k in range(self.n_sites)]
        models[self.index] = self._personal.received
        models.insert(0, self._global.received)
        for net, weights in zip(self._nets, models, strict=True):
            net.load_state_dict(weights)
        self._alike = all(torch.equal(w[key], models[0][key]) for w in models[1:] for key in w)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        if not self._alike:
            return super().step(images, labels)
        # Equal networks, as in round 1: the gradient is 0, but for rounding noise that Adam would turn into steps.
        with torch.no_grad():
            return self.loss(self.forward(images), labels).item()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The mixture's probabilities (B, L, H, W)."""
        with torch.no_grad():
            logits = torch.stack([net(images) for net in self._nets])
        return mix(super().forward(images).softmax(1), logits)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self._dice_loss(logits, labels)

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> dict:
        """Dice of the mixture."""
        self.net.eval()
        scores = torch.cat([dice_per_image(self.forward(x) > 0.5, y > 0).mean(dim=1) for x, y in batches])
        return {"score": scores.mean().item(), "images": len(scores)}


class EnsembleServer(SelectorFedAvgServer):
    """FedAvg of the selectors; sites that did not answer take no part."""

    first = 1
    _models: list[Tensors] = []  # as they were when the round began

    @classmethod
    def check(cls, settings: JobSettings, options: dict, n_sites: float) -> None:
        if settings.tracks.get("personal", {}).get("kind") != "softpull":
            raise UserError("the ensemble mixes personal networks that travel in every round: use softpull")
        if not {"global", "personal"} <= set(list(settings.tracks)[:2]):  # it looks at what these have received
            raise UserError("the ensemble needs the tracks `global` and `personal` before it: it mixes their networks")

    def link(self, tracks: dict[str, ServerTrack]) -> None:
        self._personal = tracks["personal"]

    def open(self, candidates: Callable[[], dict[str, Tensors]]) -> None:
        """Copies the networks: their own change as sites answer, while others still download."""
        self._models = [copy(weights) for weights in self._networks()]

    def _networks(self) -> list[Tensors]:
        return [self._personal.payload(site) for site in self.sites]

    def _payload(self, site: str, networks: list[Tensors]) -> Tensors:
        """The selector, and the personal networks of the other sites."""
        models = prefixed("net", self.weights)
        for k, weights in enumerate(networks):
            models |= prefixed(f"model/{k}", weights) if self.sites[k] != site else {}
        return models

    def payload(self, site: str) -> Tensors:
        return self._payload(site, self._models or self._networks())

    def final_payload(self, site: str) -> Tensors:
        return self._payload(site, self._networks())

    def close(self) -> None:
        super().close()
        self._models = []
