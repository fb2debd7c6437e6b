"""A network's forward pass as one compiled graph, which a site asks for by `compile: true`.

Only steps are compiled: validation takes the network as it is, so that scores do not depend on the setting, and no
second graph is made for it. The network itself stays what it was, with the names of its weights: it is an argument of
what is compiled. So networks of one shape share one graph.

A graph is made for one size of batches. The last batch of an epoch, which may be smaller, is filled up with its first
image, and what comes out for the copies is dropped: they get no gradient. That costs less than what torch offers: a
size that varies makes one more graph wherever a library chooses by the size (on a CPU, convolutions do at 16 images),
and slower ones. Where images of a batch change each other (batch norm) copies would count, and the smaller size gets a
graph of its own, in the first epoch.

Dropout draws other random numbers in compiled code. Sums are made in another order, so weights differ from those of
`compile: false` by rounding (`tests/tracks/test_compiled.py`).
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.text import one_line
from fedsm.nets.mixing import mixing_layer

_GRAPHS = 64  # torch's own limit of 8 is for all networks of a process together
_graph: Any = None
_lock = threading.Lock()


class CompiledForward:
    """Calls networks of one shape.

    Args:
        net: one of them.
    """

    def __init__(self, net: nn.Module):
        self._fills_up = mixing_layer(net) is None
        self._size = 0  # the largest batch so far

    def __call__(self, net: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """`net(images)`, compiled when it is first asked for.

        Raises:
            UserError: the network cannot be made one graph.
        """
        count = len(images)
        self._size = max(self._size, count)
        if self._fills_up and count < self._size:
            images = torch.cat([images, images[:1].expand(self._size - count, *images.shape[1:])])
        return _run(net, images)[:count]


def _run(net: nn.Module, images: torch.Tensor) -> torch.Tensor:
    global _graph
    from torch._dynamo import config  # takes a second, and few sites ask for it
    from torch._dynamo.exc import TorchDynamoException

    with _lock:
        if _graph is None:
            config.recompile_limit = _GRAPHS
            _graph = torch.compile(_call, fullgraph=True, dynamic=False)
    try:
        output: torch.Tensor = _graph(net, images)
    except TorchDynamoException as e:
        message = f"torch.compile makes no single graph of {type(net).__name__}"
        remedy = "leave `compile` out of fedsm_site.yaml"
        raise UserError(f"{message} ({one_line(e)})", remedy=remedy, public=f"{message}: {remedy}") from e
    return output


def _call(net: nn.Module, images: torch.Tensor) -> Any:
    return net(images)
