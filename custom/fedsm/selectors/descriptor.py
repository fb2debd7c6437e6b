"""Numbers that show where an image comes from.

    image           statistics of the pixels, without any network: 63 numbers for 3 channels, 14 for 1
    image+random    the same and pooled activations of a fixed random VGG-11: 559 and 510
    encoder         pooled activations of the trained global U-Net's encoder: two per channel, 992 for the default one

`image`, for an image of C channels: mean, standard deviation and seven quantiles of each channel; seven quantiles of
each channel's share of the brightness (chromaticity, where C > 1); log energy of five band-pass levels of each
channel. C = 3 gives 27 + 21 + 15 = 63 numbers, C = 1 gives 9 + 5 = 14.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.selectors.network_features import encoder_features, encoder_length, random_features
from fedsm.selectors.quantiles import values_at

# A super model stores the index of its descriptor in this list: new ones may only be added at the end.
DESCRIPTORS = (IMAGE, IMAGE_RANDOM, ENCODER) = ("image", "image+random", "encoder")
_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_LEVELS = 5
_EPS = 1e-6


def build_descriptor(name: str, settings: JobSettings, encoder: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """What turns (B, C, H, W) images into (B, length_of(name, settings)) float64 on the CPU.

    Args:
        name: one of `DESCRIPTORS`.
        settings: the job's settings.
        encoder: weights of the encoder (see `encoder_weights`) for the descriptor `encoder`; otherwise unused.
    """
    if name == ENCODER:
        return encoder_features(settings.task, encoder)
    if name == IMAGE:
        return describe
    activations = random_features(settings.task.channels, settings.seed)
    return lambda images: torch.cat([describe(images), activations(images)], dim=1)


def descriptor_values(name: str, settings: JobSettings) -> list[Any]:
    """Plain values that identify a descriptor, apart from the weights of an encoder."""
    if name == ENCODER:
        task = settings.task.to_dict()
        return [name, settings.task.channels, list(settings.task.labels), task["unet"]]
    return [name, settings.task.channels] + ([settings.seed] if name == IMAGE_RANDOM else [])


def length_of(name: str, settings: JobSettings) -> int:
    """How many numbers a descriptor gives."""
    if name == ENCODER:
        return encoder_length(settings.task)
    image = descriptor_length(settings.task.channels)
    return image if name == IMAGE else image + random_features(settings.task.channels, settings.seed).length


def descriptor_length(channels: int) -> int:
    """How many numbers `image` has for that many channels."""
    chromaticity = len(_QUANTILES) * channels if channels > 1 else 0
    return (2 + len(_QUANTILES) + _LEVELS) * channels + chromaticity


def image_scale(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The usual mean and the usual spread of each number of `image`, over images of all sites.

    Constants from the synthetic sites, not from any hospital's data; the right order of magnitude is enough.
    """
    groups = [(channels, 0.35, 0.15), (channels, 0.15, 0.06), (channels * len(_QUANTILES), 0.35, 0.17)]
    if channels > 1:
        groups.append((channels * len(_QUANTILES), 1 / channels, 0.1))
    groups.append((channels * _LEVELS, -6.5, 1.0))
    centre = torch.cat([torch.full((n,), c, dtype=torch.float64) for n, c, _ in groups])
    return centre, torch.cat([torch.full((n,), s, dtype=torch.float64) for n, _, s in groups])


def image_range(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest value that each number of `image` can have for images in [0, 1].

    Means, quantiles and shares of the brightness are in [0, 1]. The deviation of N >= 1024 pixels in [0, 1] is at most
    sqrt(N / (N - 1)) / 2. A band's energy is in [0, 1], and _EPS is added before the logarithm.
    """
    quantiles = channels * len(_QUANTILES)
    groups = [(channels, 0.0, 1.0), (channels, 0.0, 0.5005), (quantiles, 0.0, 1.0)]
    if channels > 1:
        groups.append((quantiles, 0.0, 1.0))
    groups.append((channels * _LEVELS, math.log(_EPS), math.log(1 + _EPS)))
    low = torch.cat([torch.full((n,), a, dtype=torch.float64) for n, a, _ in groups])
    return low, torch.cat([torch.full((n,), b, dtype=torch.float64) for n, _, b in groups])


def describe(images: torch.Tensor) -> torch.Tensor:
    """`image`: describes each image of a batch.

    Args:
        images: (B, C, H, W), at least 32 pixels each way.

    Returns:
        (B, descriptor_length(C)) float64 on the CPU.
    """
    images = images.float()
    batch, channels = images.shape[:2]
    pixels = images.flatten(2)
    ranks = torch.tensor(_QUANTILES, device=images.device)
    places = (ranks * (pixels.shape[-1] - 1)).round().long()

    mean = pixels.mean(-1)
    parts = [mean, _deviation(pixels, mean), values_at(pixels, places)]
    if channels > 1:
        share = pixels / (pixels.sum(1, keepdim=True) + _EPS)
        parts.append(values_at(share, places))
    level = images
    for _ in range(_LEVELS):
        low = functional.avg_pool2d(level, 2)
        parts.append((_band_energy(level, low) + _EPS).log())
        level = low
    return torch.cat([p.reshape(batch, -1) for p in parts], dim=1).double().cpu()


def _deviation(pixels: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """`pixels.std(-1)`, several times faster on a CPU."""
    return ((pixels - mean[..., None]).square().sum(-1) / (pixels.shape[-1] - 1)).sqrt()


def _band_energy(level: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Mean square of what the half-sized `low` leaves out of `level`, bilinear in between: (B, C)."""
    if level.shape[-2] % 2 or level.shape[-1] % 2 or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        blurred = functional.interpolate(low, size=level.shape[-2:], mode="bilinear", align_corners=False)
        return (level - blurred).square().flatten(2).mean(-1)
    # Twice the size is four grids of the small one, each a fixed mean of neighbours: faster than `interpolate`.
    padded = functional.pad(low, (1, 1, 1, 1), mode="replicate")
    rows = (padded[..., :-2, :] + 3 * padded[..., 1:-1, :], 3 * padded[..., 1:-1, :] + padded[..., 2:, :])
    total = torch.zeros_like(low[..., 0, 0])
    for y, row in enumerate(rows):
        for x, first in ((0, row[..., :-2] + 3 * row[..., 1:-1]), (1, 3 * row[..., 1:-1] + row[..., 2:])):
            total = total + (level[..., y::2, x::2] - first / 16).square().sum((-2, -1))
    return total / (level.shape[-1] * level.shape[-2])
