"""Augmentation of whole batches: flips, rotation, scale, intensity; by task, from a seed."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from fedsm.core.task_settings import AugmentSettings


def augment_batch(
    images: torch.Tensor, labels: torch.Tensor, options: AugmentSettings, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augments a batch; each image draws its own transform.

    Args:
        images: (B, C, H, W) in 0..1.
        labels: (B, L, H, W) of 0 and 1.
        options: the task's options. With none of them set nothing happens, and no random number is drawn.
        generator: a CPU generator, so that every device draws the same numbers.

    Returns:
        images in 0..1 and labels of 0 and 1, of the same shapes; what lies outside the picture is black background.
    """
    drawn = draw_transforms(len(images), options, generator)
    return transformed(images, labels, tuple(t.to(images.device) for t in drawn))


def draw_transforms(count: int, options: AugmentSettings, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The transforms of `count` images, on the CPU: affine maps (B, 2, 3), and with `intensity` gain and offset
    (B, 1, 1, 1); empty where nothing is to be done."""
    if not options.model_fields_set:
        return ()

    def uniform(limit: float) -> torch.Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    def sign(active: bool) -> torch.Tensor:
        coin = torch.rand(count, generator=generator) < 0.5
        return torch.where(coin & active, -1.0, 1.0)

    mirror_x, mirror_y = sign(options.flip != "none"), sign(options.flip == "both")
    angle = uniform(math.radians(options.rotate))
    zoom = 1 / (1 + uniform(options.scale))
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    # One affine map per image and one resampling for all: rotation and zoom of the flipped picture.
    rows = [mirror_x * cos, -mirror_y * sin], [mirror_x * sin, mirror_y * cos]
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1)
    theta = torch.cat([theta, torch.zeros(count, 2, 1)], 2)
    if not (strength := options.intensity):
        return (theta,)
    return theta, (1 + uniform(strength)).view(-1, 1, 1, 1), uniform(strength / 2).view(-1, 1, 1, 1)


def transformed(
    images: torch.Tensor, labels: torch.Tensor, transforms: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels after what `draw_transforms` drew, on their device."""
    if not transforms:
        return images, labels
    theta, *change = transforms
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    images = functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    labels = functional.grid_sample(labels, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    if change:
        gain, offset = change
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        images = ((images - mean) * gain + mean + offset).clamp(0, 1)
    return images, labels
