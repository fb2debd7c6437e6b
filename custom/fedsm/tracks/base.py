"""A track: one network with two halves, and what both answer.

The client half says how a site learns from a batch, the server half how the sites' results become the next model.
Everything else in this project carries tracks around. Nothing here knows FLARE.

A run has three phases, and in each a track answers the same questions:

    phase      when                        client half            server half
    REGISTER   once, before round 1        send                   expects, problem, accept, close
    TRAIN      every round                 receive, validate,     payload, expects, problem, accept, close
                                           begin, step, send
    DELIVER    once, after its last round  receive, validate,     payload, expects, problem, accept, close
                                           send

So a method needs no hook of its own: it does its part in the phase in which it has something to send or to receive. A
site that did not answer a round, or was not asked in it (`fraction`), is simply not given to `accept`; the docstring of
each track says what that means.
Only tracks that hold something for each site need to know when sites join or leave a run: see `Membership`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch

from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors

Report = dict[str, Any]  # a site's scores of a model on its validation images: `score`, `images`, and perhaps more
Release = Callable[[torch.Tensor, int, str], Tensors]  # turns rows of descriptors into the sums that may leave a site


class Phase(StrEnum):
    """When something is sent."""

    REGISTER = "register"
    TRAIN = "train"
    DELIVER = "deliver"


REGISTER, TRAIN, DELIVER = Phase.REGISTER, Phase.TRAIN, Phase.DELIVER


@dataclass
class SiteContext:
    """What the client halves of a site share.

    Attributes:
        index: the site's index, 0-based.
        n_sites: number of sites of the job.
        device: where to compute.
        release: checks sums over the site's images before they leave it; None: they leave as they are (tests).
        tracks: all client halves of the site, by name, in the order in which a batch steps them.
        rate_factor: the schedule's factor on the learning rate of the U-Nets in this round; see `tracks/schedule.py`.
        autocast: what networks are trained in; None: float32. See `tracks/precision.py`.
        compiled: whether steps of U-Nets run compiled code. See `tracks/compiled.py`.
    """

    index: int
    n_sites: int
    device: torch.device
    release: Release | None = None
    tracks: dict[str, ClientTrack] = field(default_factory=dict)
    rate_factor: float = 1.0
    autocast: torch.dtype | None = None
    compiled: bool = False


class ClientTrack:
    """A site's half of a track.

    Args:
        settings: the job's settings.
        options: this track's own options (everything except `kind`).
        site: what it shares with the other tracks of the site.
    """

    sums: ClassVar[bool] = False  # whether it sends sums over images instead of changes of a network
    # Whether images reach its network through `Learner.descend` alone, whose gradients a site can make private, and
    # whose batches it can split over several devices.
    private: ClassVar[bool] = False
    # Whether a step looks at networks that other tracks are changing: then it cannot run beside theirs.
    reads_others: ClassVar[bool] = False

    def __init__(self, settings: JobSettings, options: Mapping[str, Any], site: SiteContext):
        self.settings = settings
        self.options = options
        self.site = site

    @property
    def autocast(self) -> torch.dtype | None:
        """What its networks are trained in. Only `Learner.descend` scales losses, as float16 needs it."""
        return None if self.site.autocast == torch.float16 and not self.private else self.site.autocast

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Takes the server's model of a round, or after the last one the final model.

        The track may keep the tensors, but must not change them.
        """

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """Scores the model on the validation images: `{"score": mean, "images": n}`, or empty if there is no score."""
        return {}

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        """Starts a round's pass over the data.

        Args:
            n_images: how many images `step` will see in all.
            training_images: walks the training images in their order, without augmentation, for tracks that look at
                them before the pass.
        """

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        """Learns from one batch.

        Args:
            images: (B, C, H, W) in 0..1.
            labels: (B, L, H, W) of 0 and 1.
            rows: (B,) the images' positions in `begin`'s order, on the images' device.

        Returns:
            the loss, a number on the device; None if the track does not learn from batches. A step asks the device for
            no value, which would have to wait for all that was begun before (`tests/client/test_no_waiting.py`).
        """
        return None

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        """What the site sends in a phase; empty: nothing.

        Args:
            phase: before round 1, after a round's pass, or after the last round.
            training_images: walks the training images without augmentation (REGISTER and DELIVER).
        """
        return {}

    def state(self) -> Tensors:
        """What must survive a restart of the site's process (Adam's moments)."""
        return {}

    def load_state(self, state: Tensors) -> None:
        """Takes back what `state` gave. Empty: a site without a past, in round 1 or later."""


class ServerTrack(ABC):
    """The server's half of a track.

    Args:
        name: the track's name in the job (`global`, `personal`, `selector`).
        settings: the job's settings.
        options: this track's own options.
        sites: names of the sites; their order gives the index.
        tracks: all server halves of the job, by name; the caller fills it.
        store: keeps networks of which there is one for each site. What it returns may lie on disk: see `opened` and
            `editing` there.
    """

    sums: ClassVar[bool] = False  # whether sites send sums over images instead of changes of a network
    shared: bool = False  # whether all sites change one network for the same images, so that their changes are alike
    against_rules: ClassVar[str] = ""  # why only the mean can combine what sites send; empty: any `aggregation` can
    update_private: ClassVar[bool] = False  # whether it clips updates and adds the noise of `update_privacy`

    def __init__(
        self, name: str, settings: JobSettings, options: Mapping[str, Any], sites: list[str],
        tracks: dict[str, ServerTrack] | None = None, store: ModelStore = IN_MEMORY,
    ):  # fmt: skip
        self.name = name
        self.settings = settings
        self.options = options
        self.sites = sites
        self.tracks = {} if tracks is None else tracks
        self.store = store

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:  # noqa: B027
        """Refuses options that cannot work with this number of sites (inf: any number), before anything costs time.

        Raises:
            UserError: with the remedy.
        """

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:  # noqa: B027
        """Called before each of the track's rounds with its number; `best_models()` reads the best models so far."""

    def payload(self, phase: Phase, site: str) -> Tensors:
        """What a site gets in a round (TRAIN), or for validation after the last one (DELIVER)."""
        return {}

    def expects(self, phase: Phase) -> Tensors:
        """One tensor for each key that a site must send; only its shape and dtype matter, not its values."""
        return {}

    def problem(self, phase: Phase, tensors: Tensors, images: Mapping[str, int], report: Report) -> str | None:
        """What is wrong with an answer beyond keys, shapes and finite values, or None.

        Args:
            phase: the phase.
            tensors: what the site sent for this track; empty if nothing is expected.
            images: the site's images of each part.
            report: the site's scores of the model on its validation images; empty if there are none.
        """
        return None

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:  # noqa: B027
        """Takes what one site sent, after all checks. `weight` is the site's weight in averages (TRAIN)."""

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        """Ends a phase, or in TRAIN a round: what was accepted becomes the next model.

        Args:
            phase: the phase.
            reports: site -> its scores of the model on its validation images (DELIVER).

        Returns:
            site -> what a person should know about what it sent.
        """
        return {}

    @abstractmethod
    def files(self) -> dict[str, Tensors]:
        """Everything needed to go on, as file stem -> tensors."""

    @abstractmethod
    def load_files(self, files: dict[str, Tensors]) -> None:
        """Takes back what `files` gave."""

    def models(self) -> dict[str, list[str]]:
        """Each network of which the best round is kept -> the sites whose validation images score it.

        Its name is a stem of `files`, as soon as the network is at the server.
        """
        return {self.name: self.sites}

    def held(self) -> Set[str]:
        """Entries of a personal network that are its site's alone, and never mixed with another site's."""
        return frozenset()

    def facts(self) -> dict[str, Any]:
        """What results.json says of the track beside its scores: few plain values, when its training is over."""
        return {}


@runtime_checkable
class Membership(Protocol):
    """What a server track does when sites join or leave a run, if it holds something for each site.

    `files` are those of the run's checkpoint; they are changed in place.
    """

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """Adds new sites; the track's `sites` already ends with them.

        Returns:
            models that have changed by this: their best round so far no longer counts.

        Raises:
            UserError: the method cannot start a site that comes later.
        """
        ...

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        """Takes out a site that leaves for good; the track's `sites` still holds it.

        Raises:
            UserError: the method cannot go on without it.
        """
        ...

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """A shared model of this track without a site; `files` are those that `leave` left."""
        ...
