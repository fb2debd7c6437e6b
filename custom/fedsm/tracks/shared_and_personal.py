"""A personal track with two networks: one that travels and is averaged, and one that stays at its site.

The shared network goes up and down each round as in FedAvg. The personal one is made from it at the site; it is what
is scored, remembered as best and, once, after the last round, delivered (see `site_personal`). Subclasses say how the
two learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from fedsm.core.state import copy, subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import DELIVER, TRAIN, ClientTrack, Phase, Report, ServerTrack
from fedsm.tracks.learner import Learner, SegmentationLoss
from fedsm.tracks.rules import rule_of
from fedsm.tracks.shared_network import SharedNetwork
from fedsm.tracks.site_networks import DeliveredNetworks, NetworkPerSite
from fedsm.tracks.site_personal import PersonalNetwork


class SharedAndPersonalClient(ClientTrack):
    """`shared` travels, `net` stays. The site's state need not hold the shared network, which comes each round.

    The personal network starts as the first shared model that arrives: that of round 1, or a later one at a site that
    joined later or lost its disk.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.personal = PersonalNetwork(self.build(), self.settings.lr, self.settings, self.site, self.autocast)
        self.shared = deepcopy(self.net)
        self.segmentation_loss = SegmentationLoss(self.settings.loss)
        self.received: Tensors = {}
        self._fresh = True

    @property
    def net(self) -> nn.Module:
        """The personal network."""
        return self.personal.net

    @property
    def learner(self) -> Learner:
        """The network with its optimizer."""
        return self.personal.learner

    def build(self) -> nn.Module:
        """The network as it is before round 1."""
        net: nn.Module = build_unet(self.settings.task)
        return net

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        return self.segmentation_loss(logits, labels)

    def first_weights(self) -> Tensors:
        """The weights with which every network of the run starts."""
        return initial_weights(self.build, self.settings.seed)

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Takes the shared model; after the last round none comes."""
        if payload:
            self.received = payload
            self.shared.load_state_dict(payload)
            if self._fresh:
                self.net.load_state_dict(payload)
                self._fresh = False

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        self.personal.check_trained(phase)
        return self.personal.validate(phase, batches)

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase == TRAIN:
            return subtract(self.shared.state_dict(), self.received)
        return subtract(self.net.state_dict(), self.first_weights()) if phase == DELIVER else {}

    def state(self) -> Tensors:
        return self.personal.state()

    def load_state(self, state: Tensors) -> None:
        self.personal.load_state(state, self.first_weights())
        self._fresh = not state

    def gradients(
        self, net: nn.Module, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Loss of a batch and its gradient, one entry for each parameter, of one of the two networks."""
        net.train()
        loss = self.loss(self.learner.forward(images, net), labels)
        return loss.detach(), list(torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True))


class SharedAndPersonalServer(NetworkPerSite, ServerTrack):
    """Averages the shared network as FedAvg does, and waits for the personal ones as `SitePersonalServer` does.

    Sites that did not answer a round take no part in its average, and get the newest shared model in their next round.
    """

    shared = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.delivered = DeliveredNetworks(self.name, self.settings, self.sites, self.store)
        self.network = SharedNetwork(copy(self.delivered.first), self.sites, rule_of(self.settings))

    @property
    def weights(self) -> Tensors:
        """The shared model."""
        return self.network.weights

    def payload(self, phase: Phase, site: str) -> Tensors:
        """Nothing after the last round: what is validated then is at the sites."""
        return self.weights if phase == TRAIN else {}

    def expects(self, phase: Phase) -> Tensors:
        if phase == TRAIN:
            return self.weights
        return self.delivered.first if phase == DELIVER else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        if phase == TRAIN:
            self.network.add(site, tensors, weight)
        elif phase == DELIVER:
            self.delivered.add(site, tensors)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self.network.close()
            self.delivered.forget()
        return {}

    def files(self) -> dict[str, Tensors]:
        return {self.name: self.weights} | self.delivered.files()

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.network = SharedNetwork(files[self.name], self.sites, rule_of(self.settings))
        self.delivered.load_files(files)

    def models(self) -> dict[str, list[str]]:
        return self.delivered.models()
