"""Personal networks that stay at their sites, and are handed over once, after the last round.

These methods need little on the wire: Local nothing, Ditto and APFL the global model that comes anyway. So the site
keeps its personal network on its own disk, validates it each round, remembers the best, and delivers that one when
training is over: one network up for a whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy, part, prefixed, subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import DELIVER, TRAIN, ClientTrack, Phase, Report, ServerTrack, SiteContext
from fedsm.tracks.ema import AVERAGE, RoundAverage
from fedsm.tracks.learner import Learner, SegmentationLoss, dice_report, other_weights
from fedsm.tracks.segmentation import SegmentationClient
from fedsm.tracks.site_networks import DeliveredNetworks, NetworkPerSite


class PersonalNetwork:
    """A site's own network, and its best version so far.

    Args:
        net: the network.
        lr: Adam's learning rate.
        settings: the job's settings.
        site: what the tracks of the site share.
        autocast: what it is trained in; None: float32.
    """

    def __init__(
        self, net: nn.Module, lr: float, settings: JobSettings, site: SiteContext, autocast: torch.dtype | None = None
    ):
        self.learner = Learner(net, lr, site.device, autocast, lambda: site.rate_factor, site.compiled)
        self.best: Tensors = {}
        self.best_score = -1.0
        self._momentum = settings.ema
        self._average: RoundAverage | None = None

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.learner.net

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """Scores the network, or its average over the rounds if the job has one, and remembers the best.

        After the last round the best takes the network's place.
        """
        average = self._averaged()
        if phase == TRAIN:  # after the last round it may be asked for again: nothing is kept
            self._average = average
        with other_weights(self.net, average.weights if average else {}):
            report = dice_report(self.net, self.learner.forward, batches)
            if report["score"] > self.best_score:
                self.best, self.best_score = copy(self.net.state_dict()), report["score"]
        if phase == DELIVER:
            self.net.load_state_dict(self.best)
            report["score"] = self.best_score
        return report

    def _averaged(self) -> RoundAverage | None:
        """The average with the network as it is now, which the round before made; a site's first is the start."""
        if not self._momentum:
            return None
        weights = self.net.state_dict()
        return self._average.after(weights) if self._average else RoundAverage.before(self._momentum, weights)

    def check_trained(self, phase: Phase) -> None:
        """Refuses to hand over a network that was never trained.

        Raises:
            UserError: the site took part in no round, or lost its disk.
        """
        if phase == DELIVER and not self.best:
            raise UserError("the site has no personal network: it took part in no round, or lost its local state")

    def state(self) -> Tensors:
        """What must survive a restart."""
        score = torch.tensor(self.best_score, dtype=torch.float64)
        return (
            prefixed("adam", self.learner.moments())
            | prefixed("net", copy(self.net.state_dict()))
            | prefixed("best", self.best)
            | {"score": score}
            | self._average_state()
        )

    def _average_state(self) -> Tensors:
        if self._average is None:
            return {}
        return prefixed(AVERAGE, self._average.weights) | {"updates": torch.tensor(self._average.updates)}

    def load_state(self, state: Tensors, first: Tensors) -> None:
        """Takes back what `state` gave; without a past the network starts with the first weights."""
        self.learner.load_moments(part("adam", state))
        self.net.load_state_dict(part("net", state) or first)
        self.best = part("best", state)
        self.best_score = float(state.get("score", -1.0))
        average = part(AVERAGE, state)
        self._average = RoundAverage(self._momentum, average, int(state["updates"])) if average else None


class SitePersonalClient(ClientTrack):
    """Holds the personal network, and trains it by itself unless a subclass says otherwise.

    Beside a global track it starts as the first global model that arrives: that of round 1, or a later one at a site
    that joined later or lost its disk.
    """

    private = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.personal = PersonalNetwork(self.build(), self.lr, self.settings, self.site, self.autocast)
        self.segmentation_loss = SegmentationLoss(self.settings.loss)
        self._fresh = True

    @property
    def net(self) -> nn.Module:
        """The personal network."""
        return self.personal.net

    @property
    def learner(self) -> Learner:
        """The personal network with its optimizer."""
        return self.personal.learner

    @property
    def lr(self) -> float:
        """Adam's learning rate, before the schedule's factor."""
        return self.settings.lr

    @property
    def global_track(self) -> SegmentationClient:
        """The site's global track, for methods that learn beside it."""
        track = self.site.tracks["global"]
        assert isinstance(track, SegmentationClient)  # `BesideGlobalServer.check` holds it
        return track

    def build(self) -> nn.Module:
        """The network as it is before round 1."""
        net: nn.Module = build_unet(self.settings.task)
        return net

    def first_weights(self) -> Tensors:
        """The weights with which every network of the run starts: all parties derive them from the seed."""
        return initial_weights(self.build, self.settings.seed)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch: the mean over its images."""
        return self.segmentation_loss(logits, labels)

    def penalty(self) -> torch.Tensor | None:
        """What is added to the loss, and depends on no image; None: nothing."""
        return None

    def start(self, weights: Tensors) -> None:
        """Begins with these weights."""
        self.net.load_state_dict(weights)

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Nothing comes down; a site without a past starts from this round's global model."""
        beside = self.site.tracks.get("global")
        if self._fresh and isinstance(beside, SegmentationClient) and beside.received:
            self.start(beside.received)
        self._fresh = False

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        self.personal.check_trained(phase)
        return self.personal.validate(phase, batches)

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        self.net.train()
        return self.learner.descend(self.loss(self.learner.forward(images), labels), self.penalty())

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        """The network as its difference from the first weights, which every party knows: filters expect differences."""
        return subtract(self.net.state_dict(), self.first_weights()) if phase == DELIVER else {}

    def state(self) -> Tensors:
        return self.personal.state()

    def load_state(self, state: Tensors) -> None:
        self.personal.load_state(state, self.first_weights())
        self._fresh = not state


class SitePersonalServer(NetworkPerSite, ServerTrack):
    """Waits for the personal networks. Nothing travels in a round.

    A site that is gone after the last round leaves none: the global model stands in for it in the super model.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.delivered = DeliveredNetworks(self.name, self.settings, self.sites, self.store)

    def expects(self, phase: Phase) -> Tensors:
        return self.delivered.first if phase == DELIVER else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        if phase == DELIVER:
            self.delivered.add(site, tensors)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self.delivered.forget()
        return {}

    def files(self) -> dict[str, Tensors]:
        return self.delivered.files()

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.delivered.load_files(files)

    def models(self) -> dict[str, list[str]]:
        return self.delivered.models()


class BesideGlobalServer(SitePersonalServer):
    """The same, for networks that learn beside the site's global one."""

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        if next(iter(settings.tracks)) != "global":  # a batch steps the tracks in this order
            raise UserError(
                "the personal track learns beside the global one", remedy="list `global` as the first track"
            )
