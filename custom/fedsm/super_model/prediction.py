"""Predictions, and the way from a network's output at its own size to labels in the image's size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from fedsm.selectors.selection import Selection


class BatchPrediction(NamedTuple):
    """Of a batch: (B, L, H, W) probabilities, (B, K + 1) weights of the models, and the selector's output."""

    probabilities: torch.Tensor
    weights: torch.Tensor
    selection: Selection

    def rows(self, rows: slice) -> BatchPrediction:
        """Some images of the batch."""
        return BatchPrediction(self.probabilities[rows], self.weights[rows], self.selection.rows(rows))

    @staticmethod
    def cat(batches: list[BatchPrediction]) -> BatchPrediction:
        """Several batches as one."""
        return BatchPrediction(
            torch.cat([batch.probabilities for batch in batches]),
            torch.cat([batch.weights for batch in batches]),
            Selection.cat([batch.selection for batch in batches]),
        )


@dataclass(frozen=True)
class Prediction:
    """The super model's prediction for an image.

    Attributes:
        mask: (H, W) the task's mask values, in the image's own size; of a volume (slices, H, W), in the order and
            orientation in which `fedsm.data.readers.read` gives it.
        model: the network that was used; of a volume the one that was used most.
        confidence: max yhat of the selector, of a volume the slices' mean; None without a selector.
        distance: distance to the nearest site's images, in units of what is usual there; of a volume the slices' mean.
            None for a trained selector.
        output: (L, S, S) probabilities in the network's own size; of a volume (slices, L, S, S).
        foreign: whether the image is farther from every site than the super model's delta, so that the global model
            segments it; of a volume whether most slices are. None where nobody can tell.
        slices: a volume's slices; empty for a picture.
    """

    mask: np.ndarray
    model: str
    confidence: float | None
    distance: float | None
    output: torch.Tensor
    foreign: bool | None = None
    slices: tuple[Prediction, ...] = ()

    @property
    def probabilities(self) -> np.ndarray:
        """(L, H, W) float32, or (slices, L, H, W)."""
        return resize(self.output, self.mask.shape[-2:]).numpy()


def resize(probabilities: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """(..., L, S, S) probabilities to (..., L, H, W), bilinear, as images are resized for the networks."""
    if probabilities.shape[-2:] == torch.Size(size):
        return probabilities
    flat = probabilities.reshape(-1, 1, *probabilities.shape[-2:])
    resized = functional.interpolate(flat, tuple(size), mode="bilinear", antialias=True)
    return resized.reshape(*probabilities.shape[:-2], *size)


def labels_at(probabilities: torch.Tensor, size: tuple[int, int]) -> np.ndarray:
    """(L, S, S) probabilities to (L, H, W) bool; one label at a time, for images of 100 million pixels."""
    return np.stack([(resize(label[None], size)[0] > 0.5).numpy() for label in probabilities])


def join(slices: list[Prediction]) -> Prediction:
    """The prediction of a volume from those of its slices."""
    confidence, distance = (
        None if getattr(slices[0], name) is None else float(np.mean([getattr(s, name) for s in slices]))
        for name in ("confidence", "distance")
    )
    return Prediction(
        np.stack([s.mask for s in slices]),
        Counter(s.model for s in slices).most_common(1)[0][0],
        confidence,
        distance,
        torch.stack([s.output for s in slices]),
        None if slices[0].foreign is None else 2 * sum(bool(s.foreign) for s in slices) > len(slices),
        tuple(slices),
    )
