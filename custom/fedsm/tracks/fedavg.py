"""FedAvg: the global track.

    w_g <- sum_k (n_k / n) w_{g,k}

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017;
Algorithm 1, line 15 of the FedSM paper.
"""

from __future__ import annotations

import threading

import torch

from fedsm.core.state import RunningMean, copy
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import ServerTrack

_SEEDING = threading.Lock()  # torch has one generator for all threads


def initial_weights(build, seed: int) -> Tensors:
    """Weights of a freshly built network, the same for the same seed, without touching torch's generator."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return copy(build().state_dict())


class AveragedServer(ServerTrack):
    """One shared network: sites send w_k - w, the server adds the weighted mean of the differences.

    Equal to averaging the weights, and what privacy filters of a site are made for. Sites that did not
    answer a round take no part: the weights n_k are renormalised over those that did. With no answer at
    all the model stays.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.weights = initial_weights(self.build, self.settings.seed)
        self._mean = RunningMean(self.weights)

    def build(self) -> torch.nn.Module:
        """The network."""
        return build_unet(self.settings.task)

    def payload(self, site: str) -> Tensors:
        return self.weights

    def template(self) -> Tensors:
        return self.weights

    def merge(self, site: str, update: Tensors, n_images: int) -> None:
        self._mean.add(update, n_images, self.sites.index(site))

    def close(self) -> None:
        everybody = self._mean.count == len(self.sites)
        old = self.weights
        if self._mean.count:
            self.weights = self._mean.added_to(old)
        # A site that did not answer may still be downloading the old model: then it is left alone.
        self._mean = RunningMean(self.weights, spare=old if everybody else None)

    def files(self) -> dict[str, Tensors]:
        return {self.name: self.weights}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.weights = files[self.name]
        self._mean = RunningMean(self.weights)

    def release(self) -> None:
        self.weights = {}
        self._mean = RunningMean({})
