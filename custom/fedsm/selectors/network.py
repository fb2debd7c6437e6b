"""Trained selectors at inference."""

from __future__ import annotations

import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.nets import build_selector
from fedsm.selectors.inference import DIRECT, MIXTURE, THRESHOLD


def check_outputs(net: nn.Module, weights: Tensors) -> None:
    """Refuses weights of a network with another number of outputs.

    Raises:
        UserError: they are of another number of sites.
    """
    bias = [key for key in net.state_dict() if key.endswith(".bias")][-1]
    there, needed = len(weights[bias]), len(net.state_dict()[bias])
    if there != needed:
        raise UserError(
            f"the selector has {there} outputs, not {needed}: it is of other sites", remedy="train it again"
        )


class NetworkSelector:
    """A trained selector at inference: yhat = softmax(f_s(w_s; x)).

    Args:
        settings: the job's settings.
        n_sites: number of sites.
        tensors: the selector's weights.
        device: where to compute.
    """

    rule = THRESHOLD
    output_offset = 0  # the output of the first site

    def __init__(self, settings: JobSettings, n_sites: int, tensors: Tensors, device: torch.device):
        with torch.device("meta"):  # the weights are taken as they are, not copied
            self.net = build_selector(settings.task, self.output_offset + n_sites)
        check_outputs(self.net, tensors)
        self.net.load_state_dict(tensors, assign=True)
        self.net.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to probabilities of all outputs, on the CPU; the sites' begin at `output_offset`."""
        logits: torch.Tensor = self.net(images)
        return logits.softmax(dim=1).cpu()

    def probabilities_and_distance(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The probabilities, and None: a trained network gives no distance."""
        return self.probabilities(images), None

    @torch.no_grad()
    def features(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, F), the input of the network's last layer, on the CPU."""
        seen: torch.Tensor = self.net.head[:-1](self.net.features(images))
        return seen.cpu()


class ExtraSelector(NetworkSelector):
    """The selector of FedSM-extra at inference: (B, K + 1), the global model first."""

    rule = DIRECT
    output_offset = 1


class EnsembleSelector(NetworkSelector):
    """The mixture's weights at inference: (B, K + 1), the global model first."""

    rule = MIXTURE
    output_offset = 1
