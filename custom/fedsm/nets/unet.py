"""The 2D U-Net of the global and the personal track: MONAI's, with the task's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsm.core.task_settings import TaskSettings
from fedsm.nets.first_weights import built_alone

if TYPE_CHECKING:
    from fedsm.nets.monai_parts import UNet


def _norm(value: str | list[Any] | None) -> str | tuple[Any, ...] | None:
    """MONAI wants a name or a (name, arguments) tuple; JSON and YAML have lists."""
    return tuple(value) if isinstance(value, list) else value


def build_unet(task: TaskSettings) -> UNet:
    """Builds the U-Net of a task.

    Input is (B, task.channels, H, W), output (B, labels, H, W) logits, one independent channel per label.
    The defaults (five levels, 16 to 256 channels, two residual units) have 1.6 M parameters.
    """
    from fedsm.nets.monai_parts import UNet  # takes as long as torch to load, and a site's executor builds no network

    options = task.unet
    return built_alone(
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
