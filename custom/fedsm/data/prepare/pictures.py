"""Reading fundus pictures and putting disc and cup together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.data.limits import open_picture


def read_picture(path: Path, mode: str, source: str) -> np.ndarray:
    """A picture as uint8 array in pillow's mode `RGB` (H, W, 3) or `L` (H, W).

    Raises:
        UserError: not a picture, or truncated.
    """
    try:
        with open_picture(path) as picture:
            return np.asarray(picture.convert(mode))
    except Exception as e:  # pillow's decoders have their own exceptions; to a person they all mean the same
        raise UserError(f"{source}: {path} cannot be read ({e})", remedy="download it again") from e


def majority(readers: list[np.ndarray]) -> np.ndarray:
    """What more than half of the readers marked: votes > n / 2. A tie counts as outside."""
    return np.sum(readers, axis=0) * 2 > len(readers)


def join(disc: np.ndarray, cup: np.ndarray) -> np.ndarray:
    """Disc and cup (H, W) bool to 0 background, 1 rim, 2 cup. The cup is cut at the disc's border."""
    return disc.astype(np.uint8) + (disc & cup)
