"""The two architectures of the paper, built from a task's settings."""

import torch

from fedsm.nets.unet import build_unet
from fedsm.nets.vgg import VGG11, build_selector


def count_parameters(net: torch.nn.Module) -> int:
    """Number of trainable and fixed parameters, buffers not counted."""
    return sum(p.numel() for p in net.parameters())


__all__ = ["VGG11", "build_selector", "build_unet", "count_parameters"]
