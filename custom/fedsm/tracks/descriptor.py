"""Numbers that tell where an image comes from, without any trained network.

For an image of C channels: mean, standard deviation and seven quantiles of each channel; seven quantiles of each
channel's share of the brightness (chromaticity, where C > 1); log energy of five band-pass levels of each
channel. C = 3 gives 27 + 21 + 15 = 63 numbers, C = 1 gives 9 + 5 = 14.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_LEVELS = 5
_EPS = 1e-6


def descriptor_length(channels: int) -> int:
    """How many numbers describe an image of that many channels."""
    chromaticity = len(_QUANTILES) * channels if channels > 1 else 0
    return (2 + len(_QUANTILES) + _LEVELS) * channels + chromaticity


def describe(images: torch.Tensor) -> torch.Tensor:
    """Describes each image of a batch.

    Args:
        images: (B, C, H, W), at least 32 pixels each way.

    Returns:
        (B, descriptor_length(C)) float64 on the CPU.
    """
    images = images.float()
    batch, channels = images.shape[:2]
    pixels = images.flatten(2)
    ranks = torch.tensor(_QUANTILES, device=images.device)

    parts = [pixels.mean(-1), pixels.std(-1), _quantiles(pixels, ranks)]
    if channels > 1:
        share = pixels / (pixels.sum(1, keepdim=True) + _EPS)
        parts.append(_quantiles(share, ranks))
    level = images
    for _ in range(_LEVELS):
        low = functional.avg_pool2d(level, 2)
        blurred = functional.interpolate(low, size=level.shape[-2:], mode="bilinear", align_corners=False)
        parts.append(((level - blurred).square().flatten(2).mean(-1) + _EPS).log())
        level = low
    return torch.cat([p.reshape(batch, -1) for p in parts], dim=1).double().cpu()


def _quantiles(values: torch.Tensor, ranks: torch.Tensor) -> torch.Tensor:
    """(B, C, N) to (B, C, len(ranks)): the value at each rank of the sorted pixels."""
    positions = (ranks * (values.shape[-1] - 1)).round().long()
    return values.sort(dim=-1).values[..., positions]
