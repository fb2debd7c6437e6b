"""FedProx: a global track whose sites are held near the model they received.

    site k:  w <- Adam(w, grad of F_k(w) + mu / 2 ||w - w_g||^2)      for every batch, from w_g on
    server:  w_g <- sum_k (n_k / n) w_k

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, eq. 2 and Algorithm 2. The paper steps with
SGD; here Adam sees the gradient of the sum. mu = 0 is FedAvg. The reported loss includes the term.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import nn

from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.segmentation import SegmentationClient


def _trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def anchor_of(net: nn.Module, weights: Tensors) -> list[torch.Tensor]:
    """The weights of a network's trainable parameters, on the network's device."""
    return [weights[name].to(p.device, p.dtype) for name, p in _trainable(net).items()]


def squared_distance(net: nn.Module, anchor: list[torch.Tensor]) -> torch.Tensor:
    """||w - w_g||^2 over the trainable parameters."""
    pairs = zip(_trainable(net).values(), anchor, strict=True)
    return torch.stack([(w - w_g).square().sum() for w, w_g in pairs]).sum()


class FedProxOptions(TrackOptions):
    """Options of `fedprox`."""

    mu: float = Field(default=0.01, ge=0, description="Weight of the distance from the received model; 0 is FedAvg.")


class FedProxClient(SegmentationClient):
    """Trains the received model; the loss grows with the distance from it."""

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._anchor = anchor_of(self.net, self.received)

    def penalty(self) -> torch.Tensor:
        return float(self.options["mu"]) / 2 * squared_distance(self.net, self._anchor)
