"""The two architectures of the paper, built from a task's settings."""

from collections.abc import Callable

import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_PARAMETERS
from fedsm.core.settings import JobSettings
from fedsm.nets.unet import build_unet
from fedsm.nets.vgg import VGG11, build_selector


def count_parameters(net: torch.nn.Module) -> int:
    """Number of trainable and fixed parameters, buffers not counted."""
    return sum(p.numel() for p in net.parameters())


def check_sizes(settings: JobSettings, n_sites: int) -> None:
    """Refuses networks that are too large for a site, before any of their weights is made.

    Raises:
        UserError: naming the network; or no network can be built with these settings.
    """
    builders: dict[str, Callable[[], nn.Module]] = {
        "U-Net": lambda: build_unet(settings.task),
        "selector": lambda: build_selector(settings.task, n_sites),
    }
    for name, build in builders.items():
        try:
            with torch.device("meta"):  # no weights
                count = count_parameters(build())
        except UserError:
            raise
        except Exception as e:  # as below
            reason = str(e).splitlines()[0] if str(e) else type(e).__name__
            message = f"task {settings.task.name!r}: no network of these settings: {reason} ({name})"
            raise UserError(message, public=message) from e
        if count > MOST_PARAMETERS:
            message = f"a {name} of {count} parameters, the limit is {MOST_PARAMETERS}"
            raise UserError(message, public=message)


@torch.no_grad()
def try_networks(settings: JobSettings, n_sites: int) -> None:
    """Builds the networks and sends one image through the U-Net, before anything costs time.

    Only shapes are computed: no weights are made, so it takes a moment and no memory, however large the networks are.

    Raises:
        UserError: settings that do not make a network, or one that does not fit the image size.
    """
    check_sizes(settings, n_sites)
    side = settings.size
    try:
        with torch.device("meta"):
            shape = build_unet(settings.task)(torch.zeros(1, settings.task.channels, side, side)).shape
    except UserError:
        raise
    except Exception as e:  # torch and MONAI have many ways to say that numbers do not fit
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise UserError(
            f"task {settings.task.name!r}: no network of these settings at {settings.size} px: {reason}"
        ) from e
    if shape[-2:] != (side, side):
        raise UserError(
            f"task {settings.task.name!r}: its U-Net turns {side} px into {shape[-1]}",
            remedy="the size must be a multiple of the product of the U-Net's strides",
        )


__all__ = ["VGG11", "build_selector", "build_unet", "check_sizes", "count_parameters", "try_networks"]
