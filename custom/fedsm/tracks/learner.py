"""A network at a site with its optimizer: what every client half that trains one is built around."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from fedsm.core.dice import dice_per_image
from fedsm.core.settings import Loss
from fedsm.core.state import copy
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets.monai_parts import DiceLoss
from fedsm.tracks.compiled import CompiledForward
from fedsm.tracks.precision import fused_adam, image_format

if TYPE_CHECKING:
    from fedsm.tracks.private_steps import PrivateGradients
    from fedsm.tracks.shared_gradients import SharedGradients

SCALE = "scale."  # how the names of a `GradScaler`'s values begin among the moments


class Learner:
    """A network that takes Adam's steps.

    Adam's moments stay at the site across rounds (`moments`): only weights travel.

    Attributes:
        private: makes the gradients of images private, at a site that asks for it (`private_steps.py`); else None.
        shared: adds up the gradients of several devices, at a site that has them (`shared_gradients.py`); else None.

    Args:
        net: the network; it is moved to the device.
        lr: Adam's learning rate.
        device: where to compute.
        autocast: what the forward pass computes in; None: float32. With float16 losses are scaled.
        factor: the schedule's factor on the learning rate, asked before each step; default: a constant rate.
        compiled: whether the forward passes of steps run compiled code.
    """

    def __init__(
        self, net: nn.Module, lr: float, device: torch.device, autocast: torch.dtype | None = None,
        factor: Callable[[], float] = lambda: 1.0, compiled: bool = False,
    ):  # fmt: skip
        self.net = net.to(device)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.net.parameters(), lr=lr, betas=(0.9, 0.999), fused=fused_adam(device, autocast)
        )
        self._device = device
        self._autocast = autocast
        self._format = image_format(self.net, device)
        self._scaler = self._new_scaler()
        self._factor = factor
        self._compiled = CompiledForward(self.net) if compiled else None
        self.private: PrivateGradients | None = None
        self.shared: SharedGradients | None = None

    def forward(self, images: torch.Tensor, net: nn.Module | None = None) -> torch.Tensor:
        """Logits of this network or of `net`, under autocast where the device and the settings allow it."""
        images = images.contiguous(memory_format=self._format)
        run = self._compiled if self._compiled and torch.is_grad_enabled() else nn.Module.__call__
        with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
            logits: torch.Tensor = run(net or self.net, images).float()
        return logits

    def descend(self, loss: torch.Tensor, penalty: torch.Tensor | None = None) -> torch.Tensor:
        """One step of the optimizer along the gradient of a loss; returns the loss, on the device.

        Args:
            loss: the mean over a batch's images.
            penalty: what is added to it, and depends on no image.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total = loss if penalty is None else loss + penalty
        if self.private is None:
            mine = total if self.shared is None else total * self.shared.share
            self._scaler.scale(mine).backward()  # type: ignore[no-untyped-call]
            if self.shared:
                self.shared.add_up(self.net.parameters())
        else:
            self.private.backward(loss)
            if penalty is not None:
                penalty.backward()  # type: ignore[no-untyped-call]
        self.step()
        return total.detach()

    def step(self) -> None:
        """One step of the optimizer along the gradients that are there, at the round's learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * self._factor()
        self._scaler.step(self.optimizer)
        self._scaler.update()

    def _new_scaler(self) -> torch.amp.GradScaler:
        """Scales losses with float16; otherwise does nothing."""
        return torch.amp.GradScaler(self._device.type, enabled=self._autocast == torch.float16)

    def moments(self) -> Tensors:
        """Adam's moments, by the parameter's number and the moment's name; with float16 the scale of losses."""
        moments = self.optimizer.state_dict()["state"]
        scale = {f"{SCALE}{key}": torch.tensor(value) for key, value in self._scaler.state_dict().items()}
        return {f"{i}.{k}": v.detach().cpu() for i, entry in moments.items() for k, v in entry.items()} | scale

    def load_moments(self, state: Tensors) -> None:
        """Takes back what `moments` gave. Empty: starts anew."""
        moments: dict[int, dict[str, torch.Tensor]] = {}
        scale = {}
        for key, value in state.items():
            index, _, name = key.partition(".")
            if key.startswith(SCALE):
                scale[name] = value.item()
            else:
                moments.setdefault(int(index), {})[name] = value
        self._scaler = self._new_scaler()
        if scale and self._scaler.is_enabled():
            self._scaler.load_state_dict(scale)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})


class SegmentationLoss:
    """The loss of what a network says against labels.

        dice     L = 1 - mean over images and labels of (2 sum p y + e) / (sum p + sum y + e)      e = 1e-5
        dice+ce  L = (L_dice + L_ce) / 2,      L_ce = - mean over pixels of y log p + (1 - y) log(1 - p)

    The cross entropy has a gradient where the Dice loss has none: at labels that are absent from an image, and at
    pixels that are wrong and sure.

    Args:
        kind: the job's `loss`.
        logits: whether it is given logits, p being their sigmoid; else p itself.
    """

    def __init__(self, kind: Loss, logits: bool = True):
        self._kind = kind
        self._dice_loss = DiceLoss(sigmoid=logits)
        self._dice_losses = DiceLoss(sigmoid=logits, reduction="none")
        self._cross_entropy = functional.binary_cross_entropy_with_logits if logits else functional.binary_cross_entropy

    def __call__(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, (B, L, H, W) both."""
        loss: torch.Tensor = self._dice_loss(output, labels)
        return loss if self._kind == "dice" else (loss + self._cross_entropy(output, labels)) / 2

    def per_image(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each image, (B,); its mean is that of the batch."""
        losses: torch.Tensor = self._dice_losses(output, labels).flatten(1).mean(1)
        if self._kind == "dice":
            return losses
        return (losses + self._cross_entropy(output, labels, reduction="none").flatten(1).mean(1)) / 2


@contextmanager
def other_weights(net: nn.Module, weights: Tensors) -> Iterator[None]:
    """Gives a network other weights for a while; empty: it keeps its own."""
    own = copy(net.state_dict()) if weights else {}
    if weights:
        net.load_state_dict(weights)
    try:
        yield
    finally:
        if own:
            net.load_state_dict(own)


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
