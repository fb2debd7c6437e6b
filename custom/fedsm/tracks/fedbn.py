"""FedBN: everything is averaged but the norm layers.

    site k:  (u_k, b_k) <- Adam((u_k, b_k), grad F_k),      from u_k = u and its own b_k
    server:  u <- sum_k (n_k / n) u_k                       u: all entries outside norm layers; b_k: those inside

Li et al., "FedBN: federated learning on non-IID features via local batch normalization", ICLR 2021. The paper has batch
norm in mind; here it is every batch, instance, group, layer or RMS norm, found by the type of the module: its weights,
its running statistics and its counters. They never go up or down in a round. The wire carries u each way, and once,
after the last round, the whole network up, since norm layers are nowhere but at their site. A network without norm
layers, or whose norm layers have nothing of their own, is trained as with FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # the parent of all batch and instance norms

from fedsm.core.state import RunningMean, subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.kept import KeptClient
from fedsm.tracks.shared_kept import SharedKeptServer

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_entries(net: nn.Module) -> set[str]:
    """The entries of a network's state dict that belong to norm layers."""
    return {
        f"{name}.{key}" if name else key
        for name, module in net.named_modules()
        if isinstance(module, _NORMS)
        for key in module.state_dict()
    }


class FedBNClient(KeptClient):
    """Puts the received u around its own norm layers: that network is scored, remembered as best, and trained.

    A site without its state (a new disk) starts its norm layers anew, as in round 1.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._over = False

    def receive(self, payload: Tensors) -> None:
        self._received = payload
        self.net.load_state_dict(self.net.state_dict() | payload)

    def begin(self, n_images: int) -> None:
        self._over = False

    def update(self) -> Tensors:
        return subtract(self.net.state_dict(), self._received)

    def finish(self, batches: Iterable[Batch]) -> None:
        """The last u is still to come, and competes too: `validate` picks the best when it is here."""
        self._over = True

    def validate(self, batches: Iterable[Batch]) -> dict:
        report = super().validate(batches)
        if self._over:
            self.net.load_state_dict(self._best)
            report["score"] = self._best_score
        return report


class FedBNServer(SharedKeptServer):
    """Averages u. Sites that did not answer a round take no part, and put the newest u around norm layers that are as
    old as their last round."""

    def __init__(self, *args):
        super().__init__(*args)
        with torch.random.fork_rng(devices=[]):
            norms = norm_entries(self.build())
        self.weights = {key: value for key, value in self.weights.items() if key not in norms}
        self._mean = RunningMean(self.weights)

    def final_payload(self, site: str) -> Tensors:
        return self.weights
