"""The client half that the global and the personal track of FedSM share: one U-Net, Dice loss, Adam.

w <- Adam(w, grad of the Dice loss of f(w; x) against y), batch by batch (Algorithm 1, lines 8 and 9)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fedsm.core.state import part, subtract, without
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import TRAIN, ClientTrack, Phase, Report
from fedsm.tracks.ema import AVERAGE
from fedsm.tracks.learner import Learner, SegmentationLoss, dice_report, other_weights


class SegmentationClient(ClientTrack):
    """Trains the model that came for this round, and sends what it changed.

    The global track starts each round from the server's average and the personal one from the site's own pulled
    model; both arrive as the round's payload, so one class serves both.
    """

    private = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.learner = Learner(
            self.build(), self.settings.lr, self.site.device, self.autocast, lambda: self.site.rate_factor,
            self.site.compiled,
        )  # fmt: skip
        self.segmentation_loss = SegmentationLoss(self.settings.loss)
        self.received: Tensors = {}  # this round's model from the server, also for other tracks; must not be changed
        self.average: Tensors = {}  # its average over the rounds, if the job has one: that is validated

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.learner.net

    def build(self) -> nn.Module:
        """The network as it is before anything was received."""
        net: nn.Module = build_unet(self.settings.task)
        return net

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch: the mean over its images."""
        return self.segmentation_loss(logits, labels)

    def penalty(self) -> torch.Tensor | None:
        """What is added to the loss, and depends on no image; None: nothing."""
        return None

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self.average = part(AVERAGE, payload)
        self.received = without(AVERAGE, payload)
        self.net.load_state_dict(self.received)

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        with other_weights(self.net, self.average):
            return dice_report(self.net, self.learner.forward, batches)

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        self.net.train()
        return self.learner.descend(self.loss(self.learner.forward(images), labels), self.penalty())

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        return subtract(self.net.state_dict(), self.received) if phase == TRAIN else {}

    def state(self) -> Tensors:
        return self.learner.moments()

    def load_state(self, state: Tensors) -> None:
        self.learner.load_moments(state)
