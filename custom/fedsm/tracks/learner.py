"""A network at a site with its optimizer: what every client half that trains one is built around."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from monai.losses import DiceLoss
from torch import nn

from fedsm.core.dice import dice_per_image
from fedsm.core.tensors import Batch, Tensors


class Learner:
    """A network that takes Adam's steps.

    Adam's moments stay at the site across rounds (`moments`): only weights travel.

    Args:
        net: the network; it is moved to the device.
        lr: Adam's learning rate.
        device: where to compute.
        amp: whether CUDA may compute in bfloat16.
    """

    def __init__(self, net: nn.Module, lr: float, device: torch.device, amp: bool):
        self.net = net.to(device)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.net.parameters(), lr=lr, betas=(0.9, 0.999))
        self._device = device
        self._amp = amp and device.type == "cuda"

    def forward(self, images: torch.Tensor, net: nn.Module | None = None) -> torch.Tensor:
        """Logits of this network or of `net`, under autocast where the device and the settings allow it."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._amp):
            logits: torch.Tensor = (net or self.net)(images).float()
        return logits

    def descend(self, loss: torch.Tensor) -> float:
        """One step of the optimizer along the gradient of a loss; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def moments(self) -> Tensors:
        """Adam's moments, by the parameter's number and the moment's name."""
        moments = self.optimizer.state_dict()["state"]
        return {f"{i}.{k}": v.detach().cpu() for i, entry in moments.items() for k, v in entry.items()}

    def load_moments(self, state: Tensors) -> None:
        """Takes back what `moments` gave. Empty: starts anew."""
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            index, _, name = key.partition(".")
            moments.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})


class SegmentationLoss:
    """The Dice loss of logits against labels: 1 - mean over images and labels of the soft Dice."""

    def __init__(self) -> None:
        self._dice_loss = DiceLoss(sigmoid=True)

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self._dice_loss(logits, labels)
        return loss


@torch.no_grad()
def dice_report(
    net: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batches: Iterable[Batch], threshold: float = 0.0
) -> dict[str, float | int]:
    """Mean Dice over validation images, each image's Dice being the mean over its labels.

    Args:
        net: set to evaluation mode.
        forward: images to what is compared with the threshold: logits with 0, probabilities with 0.5.
        batches: the validation images.
        threshold: see `forward`.
    """
    net.eval()
    values = torch.cat([dice_per_image(forward(x) > threshold, y > 0).mean(dim=1) for x, y in batches])
    return {"score": values.mean().item(), "images": len(values)}
