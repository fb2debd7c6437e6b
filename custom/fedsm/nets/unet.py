"""The 2D network of the global and the personal track: MONAI's U-Net, or the network that the task names."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedsm.core.task_settings import TaskSettings
from fedsm.nets.first_weights import built_alone
from fedsm.nets.monai_network import build_network


def _norm(value: str | list[Any] | None) -> str | tuple[Any, ...] | None:
    """MONAI wants a name or a (name, arguments) tuple; JSON and YAML have lists."""
    return tuple(value) if isinstance(value, list) else value


def build_unet(task: TaskSettings) -> nn.Module:
    """Builds the segmentation network of a task: the U-Net, unless the task names another network of MONAI.

    Input is (B, task.channels, H, W), output (B, labels, H, W) logits, one independent channel per label.
    The defaults (five levels, 16 to 256 channels, two residual units) have 1.6 M parameters.
    """
    if task.network:
        return built_alone(lambda: build_network(task.network, task.channels, len(task.labels)))
    from fedsm.nets.monai_parts import UNet  # takes as long as torch to load, and a site's executor builds no network

    options = task.unet
    net: nn.Module = built_alone(
        lambda: UNet(
            spatial_dims=2,
            in_channels=task.channels,
            out_channels=len(task.labels),
            channels=options.channels,
            strides=options.strides or [2] * (len(options.channels) - 1),
            num_res_units=options.residual_units,
            norm=_norm(options.norm),
            # A bias before a norm has no effect, but its gradient is pure rounding noise, which Adam scales up to full
            # steps: weights would differ between two correct runs. The norm's own offset takes its place.
            bias=False,
        )
    )
    return net
