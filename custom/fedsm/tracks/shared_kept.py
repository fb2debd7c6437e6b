"""A personal track with two networks: one that travels and is averaged, and one that stays at its site.

The shared network goes up and down each round as in FedAvg. The personal one is made from it at the site; it is what
is scored, remembered as best and, once, after the last round, delivered (see `kept`). Subclasses say how the two learn.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from fedsm.core.state import subtract
from fedsm.core.tensors import Tensors
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.kept import KeptClient, KeptServer


class SharedKeptClient(KeptClient):
    """`shared` travels, `net` stays. The shared network needs no place in the site's state: it comes each round.

    The personal network starts as the first shared model that comes, be it that of round 1 or, for a site that joined
    late or lost its disk, a later one.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.shared = deepcopy(self.net)
        self._fresh = True

    def receive(self, payload: Tensors) -> None:
        """Takes the shared model; after the last round none comes."""
        if payload:
            self._received = payload
            self.shared.load_state_dict(payload)
            if self._fresh:
                self.net.load_state_dict(payload)
                self._fresh = False

    def update(self) -> Tensors:
        return subtract(self.shared.state_dict(), self._received)

    def load_state(self, state: Tensors) -> None:
        super().load_state(state)
        self._fresh = not state

    def gradients(self, net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
        """Loss of a batch and its gradient, an entry a parameter, of one of the two networks."""
        net.train()
        loss = self.loss(self.forward(images, net), labels)
        return loss.item(), list(torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True))


class SharedKeptServer(AveragedServer, KeptServer):
    """Averages the shared network as FedAvg does, and waits for the personal ones as `KeptServer` does.

    Sites that did not answer a round take no part in its average, and come back with the newest shared model.
    """

    def close(self) -> None:
        AveragedServer.close(self)
        KeptServer.close(self)

    def final_payload(self, site: str) -> Tensors:
        """Nothing: what is validated is at the sites."""
        return {}

    def files(self) -> dict[str, Tensors]:
        return AveragedServer.files(self) | KeptServer.files(self)

    def load_files(self, files: dict[str, Tensors]) -> None:
        AveragedServer.load_files(self, files)
        KeptServer.load_files(self, files)

    def models(self) -> list[str]:
        return list(KeptServer.files(self))

    def release(self) -> None:
        AveragedServer.release(self)
        KeptServer.release(self)
