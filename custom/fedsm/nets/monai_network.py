"""A segmentation network of MONAI by name: `network: {name: SegResNet, init_filters: 16}`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.model import known_words
from fedsm.core.network_settings import FOLLOWS, NAME, NETWORKS, REFUSED


def build_network(network: Mapping[str, Any], channels: int, labels: int) -> nn.Module:
    """Builds a network of the list.

    Args:
        network: the task's `network`: a name and arguments as MONAI's class has them.
        channels: of the images.
        labels: channels of the output.

    Raises:
        UserError: an argument that the network does not have.
    """
    from fedsm.nets.monai_parts import networks

    name = str(network[NAME])
    build = getattr(networks, name)
    known = [key for key in inspect.signature(build).parameters if key not in (*FOLLOWS, *REFUSED)]
    given = {key: value for key, value in network.items() if key != NAME}
    for key in given:
        if key not in known:
            message = f"{name} of MONAI has no argument {shown(key)}"
            raise UserError(message, remedy=known_words(key, known), public=message)
    arguments = {key: _as_monai_has_it(value) for key, value in (NETWORKS[name] | given).items()}
    net: nn.Module = build(spatial_dims=2, in_channels=channels, out_channels=labels, **arguments)
    return net


def _as_monai_has_it(value: Any) -> Any:
    """A name with its arguments is a tuple for MONAI; JSON and YAML have lists."""
    named = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
    return tuple(value) if named else value
