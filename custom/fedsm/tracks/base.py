"""A track: one network with two halves.

The client half says how a site learns from a batch, the server half how the sites' results become the next
model. Everything else in this project carries tracks around. Nothing here knows FLARE.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors


class ClientTrack:
    """A site's half of a track.

    Args:
        settings: the job's settings.
        options: this track's own options (everything beside `kind`).
        index: the site's index, 0-based.
        n_sites: number of sites of the job.
        device: where to compute.
    """

    def __init__(self, settings: JobSettings, options: dict, index: int, n_sites: int, device: torch.device):
        self.settings = settings
        self.options = options
        self.index = index
        self.n_sites = n_sites
        self.device = device

    trains = False  # whether `step` learns, and its loss says something
    sums = False  # whether what it hands over are sums over images, not a network

    def link(self, tracks: dict[str, ClientTrack]) -> None:
        """Shows a track the others of its site, once, before anything else."""

    def protect(self, release: Callable) -> None:
        """Told once, before anything is sent, how the site lets sums leave: `Releases` or `PrivateSums`."""

    def register(self, batches: Iterable[Batch]) -> Tensors:
        """What a site sends once, before round 1. `batches` walks its training images without augmentation."""
        return {}

    def receive(self, payload: Tensors) -> None:
        """Takes the server's model for this round; the tensors are the track's own to keep, not to change."""

    def validate(self, batches: Iterable[Batch]) -> dict:
        """Scores the received model: `{"score": mean, "images": n}`, or empty where there is nothing to score."""
        return {}

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Looks at the training images, without augmentation and in their order, before a round's pass."""

    def see(self, rows: torch.Tensor) -> None:
        """Told before each step which images it will see, by their number in `prepare`'s order."""

    def begin(self, n_images: int) -> None:
        """Starts a round's pass over the data, in which `step` will see `n_images` images in all."""

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Learns from one batch; returns its loss."""
        return 0.0

    def update(self) -> Tensors:
        """What the site sends after its pass. Empty: the track sends nothing."""
        return {}

    def finish(self, batches: Iterable[Batch]) -> None:
        """Ends the training: makes ready what `deliver` hands over. `batches` walks the validation images."""

    def survey(self, batches: Iterable[Batch]) -> None:
        """Looks at the training images after `finish`, when all tracks have received their final models."""

    def deliver(self) -> Tensors:
        """What a site hands over once, after the last round."""
        return {}

    def state(self) -> Tensors:
        """What must survive a restart of the site's process (Adam's moments)."""
        return {}

    def load_state(self, state: Tensors) -> None:
        """Takes back what `state` gave. An empty dict starts afresh."""

    def late(self) -> None:
        """Told after `load_state` that it starts in the middle of a run: the site joined late or lost its disk."""


class ServerTrack(ABC):
    """The server's half of a track.

    A site that did not answer a round is simply not merged: each track's docstring says what follows.

    Args:
        name: the track's name in the job (`global`, `personal`, `selector`).
        settings: the job's settings.
        options: this track's own options.
        sites: names of the sites; their order gives the index.
    """

    def __init__(self, name: str, settings: JobSettings, options: dict, sites: list[str]):
        self.name = name
        self.settings = settings
        self.options = options
        self.sites = sites

    alone = False  # whether the rounds in which it plays are its own
    hands_over_networks = False  # whether what sites hand over after the last round are networks, with norms alike
    hands_over_best = False  # whether what sites validate after the last round is the best of all rounds, not the last

    def link(self, tracks: dict[str, ServerTrack]) -> None:
        """Shows a track the others of the job, once, before anything else."""

    def plays(self, number: int) -> bool:
        """Whether the track is trained in a round."""
        return True

    def open(self, candidates: Callable[[], dict[str, Tensors]]) -> None:
        """Told before each of its rounds how to get at the best models so far of the tracks that are done."""

    @classmethod
    def check(cls, settings: JobSettings, options: dict, n_sites: float) -> None:
        """Refuses what cannot work with so many sites (inf: any number), before anything costs time.

        Raises:
            UserError: with the remedy.
        """

    @abstractmethod
    def payload(self, site: str) -> Tensors:
        """What goes down to a site in a training round. Empty: nothing."""

    def final_payload(self, site: str) -> Tensors:
        """What goes down to be validated after the last round."""
        return self.payload(site)

    @abstractmethod
    def template(self) -> Tensors:
        """A tensor for each key that an update must hold: its shape and dtype are checked, not its values."""

    def judged(self, update: Tensors) -> dict[str, Tensors]:
        """The parts of an update whose norms are of different sizes, by name: each is judged by itself."""
        return {self.name: update}

    @abstractmethod
    def merge(self, site: str, update: Tensors, n_images: int) -> None:
        """Takes one checked update as it arrives. `n_images` is the site's number of training images."""

    @abstractmethod
    def close(self) -> None:
        """Ends the round: the merged updates become the next model."""

    def registration_template(self) -> Tensors:
        """The same as `template`, for what a site sends once before round 1."""
        return {}

    def registration_problem(self, tensors: Tensors, images: dict[str, int]) -> str | None:
        """What is wrong with a site's registration beyond keys, shapes and finite values, or None."""
        return None

    def register(self, site: str, tensors: Tensors) -> None:
        """Takes what a site sent once before round 1."""

    def delivery_template(self) -> Tensors:
        """The same as `template`, for what a site hands over once after the last round."""
        return {}

    def delivery_problem(self, tensors: Tensors, images: dict[str, int]) -> str | None:
        """What is wrong with what a site handed over beyond keys, shapes and finite values, or None."""
        return None

    def deliver(self, site: str, tensors: Tensors) -> None:
        """Takes what a site handed over after the last round."""

    @abstractmethod
    def files(self) -> dict[str, Tensors]:
        """Everything needed to go on, as file stem -> tensors."""

    @abstractmethod
    def load_files(self, files: dict[str, Tensors]) -> None:
        """Takes back what `files` gave."""

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """Gives sites that are new to a run their place in its files; `self.sites` holds them already, at the end.

        Returns:
            models that are others now: the best of them so far no longer counts.

        Raises:
            UserError: the method has no start for a site that comes later.
        """
        return []

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        """Takes a site that leaves for good out of a run's files; `self.sites` still holds it.

        Raises:
            UserError: the method cannot go on without it.
        """

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """A shared model of this track without a site; `files` are those that `leave` left."""
        return model

    def models(self) -> list[str]:
        """File stems of the networks that compete for the best validation round."""
        return [self.name]

    def wanted(self) -> list[str]:
        """Models that the super model needs of this track, whether they are there or not."""
        return self.models()

    def judges(self, model: str) -> list[str]:
        """The sites whose validation images judge a model: all, for a shared network."""
        return self.sites

    def report_problem(self, report: dict) -> str | None:
        """What is wrong with a validation report beyond its score and count, or None."""
        return None

    def warnings(self) -> dict[str, str]:
        """Site -> what a person should know about what it sent once; asked when all of it is there."""
        return {}

    def release(self) -> None:
        """Forgets the weights: training is over and they are on disk."""

    def close_validation(self, reports: dict[str, dict]) -> None:
        """Takes the reports of the validation after the last round."""


class SilentServer(ServerTrack):
    """The server's half of a track that sends nothing in a round, either way."""

    def payload(self, site: str) -> Tensors:
        return {}

    def template(self) -> Tensors:
        return {}

    def merge(self, site: str, update: Tensors, n_images: int) -> None:
        """Nothing comes."""

    def close(self) -> None:
        """Nothing came."""
