"""How pixels become numbers between 0 and 1."""

from __future__ import annotations

import numpy as np

from fedsm.core.errors import UserError


class IntensityError(UserError):
    """Pixels that cannot be scaled as the task says."""


def scale_intensity(image: np.ndarray, how: str) -> np.ndarray:
    """Pixels (..., channels) to float32 in 0..1; see `TaskSettings.intensity`."""
    if how == "channel_percentiles":
        return np.concatenate([_between_percentiles(channel) for channel in np.split(image, image.shape[-1], -1)], -1)
    if how == "percentiles":
        return _between_percentiles(image)
    # pillow opens some 16-bit pictures as 32-bit integers. Other types have no natural maximum: it follows from the
    # values, 1 for fractions, 255 for what fits into a byte.
    smallest, largest = float(image.min()), float(image.max())
    if image.dtype == np.uint8 or (image.dtype != np.uint16 and 1 < largest <= 255):
        top = 255
    elif image.dtype.kind in "iu":
        top = 65535
    else:
        top = 1
    if smallest < 0 or largest > top:
        raise IntensityError(
            f"intensities from {smallest:g} to {largest:g} are not those of a picture",
            remedy="use `intensity: percentiles`",
        )
    return (image / np.float32(top)).astype(np.float32, copy=False)


def _between_percentiles(image: np.ndarray) -> np.ndarray:
    low, high = np.percentile(image, (1, 99))
    return np.clip((image.astype(np.float32) - low) / max(float(high - low), 1e-6), 0, 1).astype(np.float32, copy=False)
