"""The ingredients of the training recipe for the plain loops, written from their formulas: loss, rate, shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from monai.losses import DiceLoss
from torch.nn.functional import logsigmoid

from fedsm.core.settings import JobSettings
from fedsm.data.augment import augment_batch


def loss_of(settings: JobSettings) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """MONAI's Dice loss of logits, or its mean with the cross entropy, - mean of y log p + (1 - y) log(1 - p)."""
    dice = DiceLoss(sigmoid=True)
    if settings.loss == "dice":
        return dice

    def dice_and_cross_entropy(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (dice(z, y) - (y * logsigmoid(z) + (1 - y) * logsigmoid(-z)).mean()) / 2

    return dice_and_cross_entropy


def factor_of(settings: JobSettings, number: int, rounds: int | None = None) -> float:
    """The schedule's factor in a round; `rounds`: of the U-Nets, where these are not all."""
    warm, last = settings.warmup_rounds, rounds or settings.rounds
    if number <= warm:
        return number / (warm + 1)
    past = (number - warm - 1) / (last - warm)
    return 1.0 if settings.schedule == "constant" else 0.5 + 0.5 * math.cos(math.pi * past)


def set_rates(adams: Iterable[torch.optim.Optimizer], lr: float) -> None:
    """Gives optimizers a learning rate."""
    for group in (group for adam in adams for group in adam.param_groups):
        group["lr"] = lr


def weights_of(settings: JobSettings, n: list[int]) -> list[int]:
    """What sites with so many images weigh against each other."""
    return [1] * len(n) if settings.site_weights == "equal" else n


def shares_of(settings: JobSettings, n: list[int]) -> list[float]:
    """The shares of sites with so many images: their sum is 1."""
    weights = weights_of(settings, n)
    return [weight / sum(weights) for weight in weights]


def augmented(settings: JobSettings, x: torch.Tensor, y: torch.Tensor, rng: torch.Generator):
    """A batch as the sites augment it."""
    return augment_batch(x, y, settings.task.augment, rng)
