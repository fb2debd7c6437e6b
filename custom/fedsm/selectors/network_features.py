"""Pooled activations of a network, as numbers that show where an image comes from.

For a level of c channels: mean and standard deviation over the pixels of each, so 2 c numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsm.core.task_settings import TaskSettings
from fedsm.core.tensors import Tensors
from fedsm.nets import VGG11, build_unet

# The first four levels of a VGG-11 of this width have 17 + 33 + 66 + 132 = 248 channels. The fifth is left out: it has
# 2 x 2 pixels of the smallest images, too few for a deviation.
_LEVELS = 4
_WIDTH = 31 / 120


class PooledFeatures:
    """Mean and deviation of the channels after each level of a network.

    Args:
        levels: the network in parts; each gets the output of the part before it.
        length: the number of features.
    """

    def __init__(self, levels: Iterable[nn.Module], length: int):
        self.length = length
        self._levels = nn.ModuleList(levels).eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) images to (B, length) float64 on the CPU."""
        self._levels.to(images.device)
        parts = []
        x = images.float()
        # TF32 has three digits: the same image would give different numbers on machines with and without it.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for level in self._levels:
                x = level(x)
                pixels = x.flatten(2).double()
                parts += [pixels.mean(-1), pixels.std(-1, correction=0)]
        return torch.cat(parts, dim=1).cpu()


def random_features(channels: int, seed: int) -> PooledFeatures:
    """496 numbers of a VGG-11 with random weights: He's variance, uniform, no bias.

    The weights come from numpy's legacy generator, whose stream is frozen and whose uniform numbers need no
    mathematics library: they are the same to the bit on every machine. Torch promises neither.
    """
    with torch.device("meta"):  # weights are drawn below: torch's generator must not change
        plan = VGG11(channels, classes=1, width=_WIDTH).features
    draw = np.random.RandomState(seed % 2**32)
    levels: list[list[nn.Module]] = [[]]
    for module in plan:
        if isinstance(module, nn.MaxPool2d):
            if len(levels) == _LEVELS:
                break
            levels.append([])
        elif isinstance(module, nn.Conv2d):
            bound = (6 / module.weight[0].numel()) ** 0.5
            weight = torch.from_numpy(draw.uniform(-bound, bound, module.weight.shape)).float()
            module.load_state_dict({"weight": weight, "bias": torch.zeros(len(weight))}, assign=True)
        levels[-1].append(module)
    widths = [[m.out_channels for m in level if isinstance(m, nn.Conv2d)][-1] for level in levels]
    return PooledFeatures([nn.Sequential(*level) for level in levels], 2 * sum(widths))


def encoder_features(task: TaskSettings, weights: Tensors) -> PooledFeatures:
    """The features of a U-Net's encoder with the weights that `encoder_weights` gave."""
    levels = _levels(_empty_unet(task))
    nn.ModuleList(levels).load_state_dict(weights, assign=True)
    return PooledFeatures(levels, encoder_length(task))


def encoder_length(task: TaskSettings) -> int:
    """How many numbers the encoder of a task's U-Net gives: two per channel."""
    levels: list[Any] = [*_levels(_empty_unet(task))]
    return 2 * sum(int(level.out_channels) for level in levels)


def encoder_weights(task: TaskSettings, weights: Tensors) -> Tensors:
    """The part of a U-Net's state dict that its encoder needs; the same tensors, not copies."""
    net = _empty_unet(task)
    net.load_state_dict(weights, assign=True)
    return dict(nn.ModuleList(_levels(net)).state_dict())


def _empty_unet(task: TaskSettings) -> nn.Module:
    """A U-Net without weights, so that none are drawn at random."""
    with torch.device("meta"):
        return build_unet(task)


def _levels(net: nn.Module) -> list[nn.Module]:
    """The encoder's blocks from the image to the bottom. A level of MONAI's U-Net is (down, lower levels, up)."""
    levels: list[nn.Module] = []
    rest: Any = net.model
    while hasattr(rest[1] if isinstance(rest, nn.Sequential) else None, "submodule"):
        down, below, _ = rest
        levels.append(down)
        rest = below.submodule
    return [*levels, rest]
