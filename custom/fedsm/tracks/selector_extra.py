"""FedSM-extra: in rounds of its own, the selector learns which model is best for which image.

    rounds 1 .. R:        the global and the personal networks, as in FedSM
    rounds R+1 .. R+dR:   the selector alone, K + 1 classes: 0 is the global model, k the personal one of site k
        label of an image = argmin_m L(h_m(x), y)                       over the K + 1 best models of R rounds
        site k:  w_s <- Adam(w_s, eta_s, grad CE(f_s(w_s; x), label))   for every batch
        server:  w_s <- sum_k (n_k / n) w_{s,k}
    inference: the model argmax f_s(x); no threshold

Xu et al., CVPR 2022, FedSM-extra. The paper prints L(h, h_k); we read L(h_k, y), y the ground truth. A site gets the
K + 1 networks once, computes the labels of its images once and keeps them on its disk. The selector that is kept is the
one whose choices have the best Dice on the validation images. L is the job's loss. A schedule of the learning rate
ends with round R, the networks' last; eta_s is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from fedsm.core.dice import dice_per_image
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy, part, prefixed
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.learner import SegmentationLoss
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorServer

_LABELS, _DICE = "labels", "dice"


def lowest(losses: torch.Tensor) -> torch.Tensor:
    """(images, models) -> the model with the lowest loss, the first of equals. NaN counts as the highest loss:
    for torch it is the lowest, and one broken network would win every image."""
    return losses.nan_to_num(nan=torch.inf).argmin(1)


class ExtraOptions(TrackOptions):
    """Options of `selector_extra`."""

    rounds: int = Field(default=50, ge=1, description="How many rounds at the end of the job train only the selector.")


class ExtraClient(SelectorClient):
    """A VGG-11 that learns which model segments an image best."""

    output_offset = 1  # output 0 is the global model

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._models: list[nn.Module] = []
        self._known: Tensors = {}  # labels of the training images and Dice of the validation images, in their order

    def receive(self, phase: Phase, payload: Tensors) -> None:
        super().receive(phase, part("net", payload))
        models = part("model", payload)
        if models:
            count = self.site.n_sites + 1
            self._models = [build_unet(self.settings.task).to(self.site.device).eval() for _ in range(count)]
            for m, net in enumerate(self._models):
                net.load_state_dict(part(str(m), models))
            self._known = {}

    @torch.no_grad()
    def _scores(self, batches: Iterable[Batch], score: Callable[..., torch.Tensor]) -> torch.Tensor:
        """(images, K + 1): `score(logits, truth)` of every model for each image."""
        if not self._models:
            raise UserError("the site has lost its labels: it makes them again when the models come in the next round")
        return torch.cat([torch.stack([score(net(x), y) for net in self._models], 1) for x, y in batches]).cpu()

    @torch.no_grad()
    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """Dice of the models that the selector chooses.

        Not how often it names the best model: a wrong choice costs little where the models are alike, and much where
        they are not. Dice shows the difference.
        """
        self.net.eval()
        chosen, dice = [], []
        for x, y in batches:
            chosen.append(self.learner.forward(x).argmax(1).cpu())
            if _DICE not in self._known:
                dice.append(self._scores([(x, y)], lambda logits, y: dice_per_image(logits > 0, y > 0).mean(1)))
        if dice:
            self._known[_DICE] = torch.cat(dice)
        scores = self._known[_DICE].gather(1, torch.cat(chosen)[:, None])
        return {"score": scores.mean().item(), "images": len(scores)}

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        """Labels each training image with the model of the lowest loss; of equals the first, so the global model."""
        if _LABELS not in self._known:
            losses = self._scores(training_images, SegmentationLoss(self.settings.loss).per_image)
            self._known[_LABELS] = lowest(losses)
        self._models = []
        self._known[_LABELS] = self._known[_LABELS].to(self.site.device)

    def loss(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Cross entropy against the models that are best for these images."""
        logits = self.learner.forward(images)
        return functional.cross_entropy(logits, self._known[_LABELS][rows])

    def state(self) -> Tensors:
        return prefixed("adam", super().state()) | prefixed("known", copy(self._known))

    def load_state(self, state: Tensors) -> None:
        super().load_state(part("adam", state))
        self._known = part("known", state)


class ExtraServer(SelectorServer):
    """FedAvg of the selectors in the last `rounds` rounds, in which nothing else is trained (see `playing`).

    A site that was asked and did not answer gets the K + 1 networks again with its next task: it may have lost its
    labels. One that was not asked (`fraction`) keeps them.
    """

    output_offset = 1  # output 0 is the global model

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._models: Tensors = {}
        self._labelled: set[str] = set()
        self._asked: set[str] = set()
        self._answered: set[str] = set()

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        if options["rounds"] >= settings.rounds:
            raise UserError(
                f"the selector's own rounds ({options['rounds']}) must be fewer than all rounds ({settings.rounds})",
                remedy="set tracks.selector.rounds",
            )
        if settings.warmup_rounds >= settings.rounds - options["rounds"]:
            raise UserError(
                f"warmup_rounds ({settings.warmup_rounds}) must be fewer than the rounds before the selector's own"
                f" ({settings.rounds - options['rounds']})"
            )
        if not {"global", "personal"} <= set(settings.tracks):
            raise UserError("FedSM-extra chooses among the tracks `global` and `personal`", remedy="list both")

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:
        self._best_models = best_models

    def payload(self, phase: Phase, site: str) -> Tensors:
        if phase == TRAIN:
            self._asked.add(site)
        if phase != TRAIN or site in self._labelled:
            return prefixed("net", self.weights)
        if not self._models:
            models = self._best_models()
            order = ["global", *(f"personal.{site}" for site in self.sites)]
            for m, name in enumerate(order):
                self._models |= prefixed(f"model/{m}", models[name])
        return prefixed("net", self.weights) | self._models

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        super().accept(phase, site, tensors, weight)
        self._answered.add(site)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self._labelled = (self._labelled - self._asked) | self._answered
            self._asked, self._answered = set(), set()
            self._models = {}
        return super().close(phase, reports)
