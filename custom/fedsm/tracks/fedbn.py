"""FedBN: everything except the norm layers is averaged.

    site k:  (u_k, b_k) <- Adam((u_k, b_k), grad F_k),      from u_k = u and its own b_k
    server:  u <- sum_k (n_k / n) u_k                       u: all entries outside norm layers; b_k: those inside

Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021. The paper has batch
norm in mind; here every batch, instance, group, layer or RMS norm counts, found by the type of the module: its weights,
its running statistics and its counters. They do not travel in a round. The wire carries u each way, and once, after the
last round, the whole network up, since only the site has its norm layers. A network without norm layers, or whose norm
layers have no parameters, is trained as with FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # the parent of all batch and instance norms

from fedsm.core.state import subtract
from fedsm.core.task_settings import TaskSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.rules import rule_of
from fedsm.tracks.shared_and_personal import SharedAndPersonalServer
from fedsm.tracks.shared_network import SharedNetwork
from fedsm.tracks.site_personal import SitePersonalClient

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_entries(net: nn.Module) -> set[str]:
    """The entries of a network's state dict that belong to norm layers."""
    return {
        f"{name}.{key}" if name else key
        for name, module in net.named_modules()
        if isinstance(module, _NORMS)
        for key in module.state_dict()
    }


def unet_norm_entries(task: TaskSettings) -> Set[str]:
    """The same of a task's U-Net."""
    with torch.device("meta"):  # only the names matter: no weights, no random numbers
        return norm_entries(build_unet(task))


class FedBNClient(SitePersonalClient):
    """Puts the received u around its own norm layers: that network is scored, remembered as best, and trained.

    A site without its state (a new disk) starts its norm layers anew, as in round 1. After the last round the site gets
    the last u, which may still give the best network.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.received: Tensors = {}

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self.received = payload
        self.net.load_state_dict(self.net.state_dict() | payload)

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        return self.personal.validate(phase, batches)

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase == TRAIN:
            return subtract(self.net.state_dict(), self.received)
        return super().send(phase, training_images)


class FedBNServer(SharedAndPersonalServer):
    """Averages u. Sites that did not answer a round take no part, and put the newest u around norm layers that are as
    old as their last round."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._norms = unet_norm_entries(self.settings.task)
        shared = {key: value for key, value in self.weights.items() if key not in self._norms}
        self.network = SharedNetwork(shared, self.sites, rule_of(self.settings))

    def payload(self, phase: Phase, site: str) -> Tensors:
        """u, also after the last round: norm layers alone are not a network."""
        return self.weights

    def held(self) -> Set[str]:
        return self._norms
