"""Layers through which the images of a batch change each other's output."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def mixing_layer(net: nn.Module) -> nn.Module | None:
    """The first layer that looks at several images of a batch at once, or remembers them; None: each image is alone.

    That is batch norm, with or without weights, and what has buffers such as running statistics.
    """
    return next((m for m in net.modules() if isinstance(m, _BatchNorm) or any(True for _ in m.buffers(False))), None)
