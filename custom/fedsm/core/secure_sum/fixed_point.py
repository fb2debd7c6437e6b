"""Real numbers as whole numbers modulo 2^k: under masks they look like noise, and the masks cancel exactly.

    site i:  q_i = round(p_i x_i s) mod 2^k,      s = 2^(k-2) / clip,      ||x_i|| <= clip
    server:  sum_i p_i x_i = (sum_i q_i mod 2^k, as a signed number) / s

No overflow is possible among sites that keep to it: every entry of x_i is at most clip, and the p_i sum to at most 1,
so |sum_i q_i| <= 2^(k-2) + n / 2 < 2^(k-1). Rounding moves the sum by at most n / (2 s) = n clip / 2^(k-1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsm.core.tensors import Tensors

Whole = NDArray[Any]  # unsigned whole numbers modulo 2^k
Real = NDArray[np.float64]
_UNSIGNED: dict[int, np.dtype[Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}
_SIGNED: dict[int, np.dtype[Any]] = {32: np.dtype("<i4"), 64: np.dtype("<i8")}
WIRE = {32: torch.int32, 64: torch.int64}  # torch has few operations on unsigned numbers; the bits are the same


def unsigned(bits: int) -> np.dtype[Any]:
    """The type of numbers modulo 2^bits."""
    return _UNSIGNED[bits]


def float_entries(tensors: Tensors) -> list[str]:
    """The entries that are summed, in an order that does not depend on the dict's. Integer buffers are not."""
    return sorted(key for key, value in tensors.items() if value.is_floating_point())


def flat(tensors: Tensors) -> Real:
    """The floats of an update in one row."""
    rows = [tensors[key].detach().cpu().reshape(-1).to(torch.float64) for key in float_entries(tensors)]
    return torch.cat(rows).numpy() if rows else np.zeros(0)


def shaped(row: Real, template: Tensors) -> Tensors:
    """A row as an update again; integer buffers are 0, which leaves them as they are."""
    update: Tensors = {}
    start = 0
    for key in float_entries(template):
        count = template[key].numel()
        values = torch.from_numpy(row[start : start + count])
        update[key] = values.to(template[key].dtype).reshape(template[key].shape)
        start += count
    return {key: update[key] if key in update else torch.zeros_like(value) for key, value in template.items()}


def clipped(row: Real, clip: float) -> Real:
    """x min(1, clip / ||x||)."""
    norm = float(np.linalg.norm(row))
    return row * (clip / norm) if norm > clip else row


def encode(row: Real, share: float, clip: float, bits: int) -> Whole:
    """round(p x s) mod 2^k, for a row that is clipped."""
    whole: Whole = np.rint(row * (share * _scale(clip, bits))).astype(np.int64).astype(_UNSIGNED[bits])
    return whole


def decode(total: Whole, share: float, clip: float, bits: int) -> Real:
    """The weighted mean: the sum of `encode`s divided by the sum of their shares."""
    mean: Real = total.view(_SIGNED[bits]) / (share * _scale(clip, bits))
    return mean


def _scale(clip: float, bits: int) -> float:
    return float(2.0 ** (bits - 2) / clip)
