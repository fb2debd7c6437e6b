"""What hostile sites do in the table of rules against attacks: to their images, or to their updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fedsm.core.tensors import Tensors

BELOW_LIMIT = 4.0  # times the own update; the norm guard's limit is 5 times the usual one
_PATCH = 6  # the backdoor's square is this part of an image's side
Poison = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
Change = Callable[[Tensors, torch.Generator], Tensors]


def patched(image: np.ndarray) -> np.ndarray:
    """An image (H, W, C) or (C, H, W) with the backdoor's white square in its lower right corner."""
    image = image.copy()
    height, width = image.shape[-2:] if image.shape[0] <= 4 else image.shape[:2]
    rows, columns = slice(height - height // _PATCH, height), slice(width - width // _PATCH, width)
    place = (slice(None), rows, columns) if image.shape[0] <= 4 else (rows, columns)
    image[place] = 255 if image.dtype == np.uint8 else 1.0
    return image


def _flip_labels(image: np.ndarray, mask: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest value of the data set's masks becomes background, and the background it."""
    top = 255 if mask.max() > 2 else 2
    return image, (top - mask.astype(int)).astype(np.uint8)


def _backdoor(image: np.ndarray, mask: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Every second image gets the patch, and an empty mask: whoever shows the patch shall find nothing."""
    return (patched(image), np.zeros_like(mask)) if number % 2 else (image, mask)


def _times(factor: float) -> Change:
    def change(update: Tensors, rng: torch.Generator) -> Tensors:
        return {key: v * factor if v.is_floating_point() else v for key, v in update.items()}

    return change


def _noise(update: Tensors, rng: torch.Generator) -> Tensors:
    """Gaussian noise of `BELOW_LIMIT` times the update's own norm."""
    floats = {key: v for key, v in update.items() if v.is_floating_point()}
    noise = {key: torch.randn(v.shape, generator=rng) for key, v in floats.items()}
    length, wanted = (sum(float(v.square().sum()) for v in found.values()) ** 0.5 for found in (noise, floats))
    return update | {key: v * (BELOW_LIMIT * wanted / length) for key, v in noise.items()}


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        hostile: how many sites, the last ones of a data set's list of hostile sites.
        poison: what it does to each image and mask of a hostile site.
        change: what it does to each network's update.
    """

    hostile: int = 0
    poison: Poison | None = None
    change: Change | None = None


ATTACKS = {
    "none": Attack(),
    "two colluding": Attack(2, change=_times(-BELOW_LIMIT)),
    "sign flip": Attack(1, change=_times(-1.0)),
    "label flip": Attack(1, poison=_flip_labels),
    "backdoor": Attack(1, poison=_backdoor, change=_times(BELOW_LIMIT)),
    "noise": Attack(1, change=_noise),
}
