"""Batches for differential privacy: each patient is in a batch by a coin of its own, with one image.

    a patient is in a batch with probability q = B / P; then one of its images, each with the same chance

B is the expected number of images in a batch and P the number of patients. That is the sampling that the accountant
assumes, and a patient moves a sum of clipped gradients by at most one image's. A batch can be larger or smaller than B,
and empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


class PoissonBatches:
    """Draws batches.

    Args:
        patients: the rows of each patient's images.
        size: B as the job asks for it; at most P.
    """

    def __init__(self, patients: list[torch.Tensor], size: int):
        self._patients = patients
        self.size = min(size, len(patients))
        self.images = sum(map(len, patients))

    @property
    def rate(self) -> float:
        """q."""
        return self.size / len(self._patients)

    @property
    def per_epoch(self) -> int:
        """Batches of one epoch: as many as without privacy."""
        return -(-self.images // self.size)

    def draw(self, count: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """The rows of so many batches; a batch may have none."""
        for _ in range(count):
            drawn = np.flatnonzero(rng.random(len(self._patients)) < self.rate)
            rows = [int(self._patients[p][rng.integers(len(self._patients[p]))]) for p in drawn]
            yield torch.tensor(rows, dtype=torch.int64)
