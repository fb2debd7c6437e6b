"""The trained selector to the letter of Algorithm 1: local Adam steps, then FedAvg.

    site k:  w_s <- Adam(w_s, eta_s, grad CE(f_s(w_s; x), k))     for every batch
    server:  w_s <- sum_k (n_k / n) w_{s,k}

Xu et al., CVPR 2022, Algorithm 1, lines 11 and 15. Every site holds one label only (its own index), so local
steps run away and averaging them hardly helps: kept because the paper says it. `selector_gradient` is better.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from fedsm.nets import build_selector
from fedsm.tracks.base import THRESHOLD, Batch, Tensors
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.segmentation import NetworkClient


class SelectorClient(NetworkClient):
    """A VGG-11 that learns to answer with the site's own index."""

    @property
    def lr(self) -> float:
        return self.settings.selector_lr

    def build(self) -> nn.Module:
        return build_selector(self.settings.task, self.n_sites)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, torch.full((len(logits),), self.index, device=logits.device))

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> dict:
        self.net.eval()
        hits = torch.cat([(self.forward(x).argmax(dim=1) == self.index).float().cpu() for x, _ in batches])
        return {"score": hits.mean().item(), "images": len(hits)}


class SelectorFedAvgServer(AveragedServer):
    """FedAvg of the selectors; what partial participation does is said at `AveragedServer`."""

    def build(self) -> nn.Module:
        return build_selector(self.settings.task, len(self.sites))


class NetworkSelector:
    """A trained selector at inference: yhat = softmax(f_s(w_s; x)).

    Args:
        settings: the job's settings.
        n_sites: number of sites.
        tensors: the selector's weights.
        device: where to compute.
    """

    rule = THRESHOLD

    def __init__(self, settings, n_sites: int, tensors: Tensors, device: torch.device):
        self.net = self.build(settings, n_sites).to(device).eval()
        self.net.load_state_dict(tensors)

    @staticmethod
    def build(settings, n_sites: int) -> nn.Module:
        """The network."""
        return build_selector(settings.task, n_sites)

    @torch.no_grad()
    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, K) probabilities of the sites, on the CPU."""
        return self.net(images).softmax(dim=1).cpu()

    @torch.no_grad()
    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, F), what the network's last layer sees, on the CPU."""
        return self.net.head[:-1](self.net.features(images)).cpu()
