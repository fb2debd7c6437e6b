"""Personal networks that stay at their sites, and are handed over once, after the last round.

What a personalization method needs on the wire differs: Local nothing, Ditto and APFL the global model that comes
anyway. So the site keeps its personal network on its own disk, validates it each round, remembers the best, and
delivers that one when training is over: one network up for a whole run.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.state import add_, copy, part, prefixed, subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import ClientTrack, SilentServer
from fedsm.tracks.fedavg import initial_weights
from fedsm.tracks.segmentation import SegmentationClient


class KeptClient(SegmentationClient):
    """Holds the personal network, and trains it alone unless a subclass says otherwise."""

    def __init__(self, *args):
        super().__init__(*args)
        self._best: Tensors = {}
        self._best_score = -1.0

    def receive(self, payload: Tensors) -> None:
        """Nothing comes down: the network is here."""

    def validate(self, batches: Iterable[Batch]) -> dict:
        report = super().validate(batches)
        if report["score"] > self._best_score:
            self._best, self._best_score = copy(self.net.state_dict()), report["score"]
        return report

    def update(self) -> Tensors:
        return {}

    def finish(self, batches: Iterable[Batch]) -> None:
        if not self._best:
            raise UserError("no personal network: the site took part in no round, or lost its local state")
        self.validate(batches)
        self.net.load_state_dict(self._best)

    def deliver(self) -> Tensors:
        """The network as its difference to the first weights, which every party knows: what filters are made for."""
        return subtract(self.net.state_dict(), initial_weights(self.build, self.settings.seed))

    def state(self) -> Tensors:
        score = torch.tensor(self._best_score, dtype=torch.float64)
        return (
            prefixed("adam", super().state())
            | prefixed("net", copy(self.net.state_dict()))
            | prefixed("best", self._best)
            | {"score": score}
        )

    def load_state(self, state: Tensors) -> None:
        super().load_state(part("adam", state))
        self.net.load_state_dict(part("net", state) or initial_weights(self.build, self.settings.seed))
        self._best = part("best", state)
        self._best_score = float(state.get("score", -1.0))


class LinkedClient(KeptClient):
    """A personal network that learns beside the site's global one. Subclasses say how."""

    _late = False  # whether it is still to start from the global model

    def link(self, tracks: dict[str, ClientTrack]) -> None:
        self.global_track = tracks["global"]
        if isinstance(self.global_track, KeptClient):
            raise UserError("the `global` track must be one network for all sites: a personal one learns beside it")

    def receive(self, payload: Tensors) -> None:
        """Nothing comes down, but a site that is late starts from the global model that came for this round."""
        if self._late:
            self.start(self.global_track.received)
            self._late = False

    def start(self, weights: Tensors) -> None:
        """Begins with these weights."""
        self.net.load_state_dict(weights)

    def late(self) -> None:
        self._late = True


class KeptServer(SilentServer):
    """Waits for the personal networks. A site that is gone after the last round leaves none: the global model stands
    in for it in the super model."""

    hands_over_best = hands_over_networks = True

    def __init__(self, *args):
        super().__init__(*args)
        self._delivered: dict[str, Tensors] = {}
        self._template = initial_weights(lambda: build_unet(self.settings.task), self.settings.seed)

    def close(self) -> None:
        """What was handed over before a finished run went on is old now, and will be handed over again."""
        self._delivered = {}

    def delivery_template(self) -> Tensors:
        return self._template

    def deliver(self, site: str, tensors: Tensors) -> None:
        self._delivered[site] = copy(self._template)
        add_(self._delivered[site], tensors)

    def files(self) -> dict[str, Tensors]:
        return {f"{self.name}.{site}": tensors for site, tensors in self._delivered.items()}

    def load_files(self, files: dict[str, Tensors]) -> None:
        named = {site: f"{self.name}.{site}" for site in self.sites}
        self._delivered = {site: files[name] for site, name in named.items() if name in files}

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        files.pop(f"{self.name}.{site}", None)

    def models(self) -> list[str]:
        return list(self.files())

    def wanted(self) -> list[str]:
        return [f"{self.name}.{site}" for site in self.sites]

    def judges(self, model: str) -> list[str]:
        """A personal model is judged by its own site alone; before the delivery all judge their own together."""
        site = model.removeprefix(f"{self.name}.")
        return [site] if site in self.sites else self.sites

    def release(self) -> None:
        self._delivered = {}


class LinkedServer(KeptServer):
    """The server's half of a `LinkedClient`."""

    @classmethod
    def check(cls, settings: JobSettings, options: dict, n_sites: float) -> None:
        if next(iter(settings.tracks)) != "global":  # a batch steps the tracks in this order
            raise UserError("a personal track that learns beside the global one needs `global` as the first track")
