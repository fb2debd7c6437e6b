"""Values at given positions of the sorted pixels, without sorting: at 256 px sorting costs as much as a U-Net.

A histogram shows in which bin each position lies, and only the pixels of these bins are sorted. The result is that of
sorting, to the bit.
"""

from __future__ import annotations

import numpy as np
import torch

_BINS = 4096


def values_at(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(..., N) values, most of them in 0..1, to (..., len(positions)): `values.sort(-1).values[..., positions]`."""
    if values.device.type != "cpu" or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return values.sort(dim=-1).values[..., positions]
    rows, places = values.reshape(-1, values.shape[-1]).numpy(), positions.numpy()
    found = np.stack([_values_at(row, places) for row in rows])
    return torch.from_numpy(found).reshape(*values.shape[:-1], len(places))


def _values_at(row: np.ndarray, places: np.ndarray) -> np.ndarray:
    # The bin number is monotone for any values, as long as they are clipped before they become whole numbers.
    bins = np.clip(row * np.float32(_BINS - 1), 0, _BINS - 1).astype(np.int16)
    counts = np.bincount(bins, minlength=_BINS)
    held = np.searchsorted(counts.cumsum(), places, side="right")
    asked = np.zeros(_BINS, bool)
    asked[held] = True
    left_out = np.where(asked, 0, counts).cumsum()  # pixels in lower bins that were not asked for
    within = places - left_out[held]
    quantiles: np.ndarray = np.partition(row[asked[bins]], within)[within]
    return quantiles
