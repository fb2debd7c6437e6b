"""FedAvg: the global track.

    w_g <- sum_k (n_k / n) w_{g,k}

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017;
Algorithm 1, line 15 of the FedSM paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks.base import TRAIN, Phase, Report, ServerTrack
from fedsm.tracks.rules import rule_of
from fedsm.tracks.shared_network import SharedNetwork
from fedsm.tracks.update_noise import UpdateNoise, check_network


class AveragedServer(ServerTrack):
    """One shared U-Net: sites send w_k - w, the server adds the weighted mean of the differences, or what the job's
    `aggregation` makes of them (`rules.py`).

    Sites that did not answer a round, or were not asked in it (`fraction`), take no part: the weights n_k are
    renormalised over those that did. With no answer at all the model stays. With the job's `update_privacy` see
    `update_noise.py`.
    """

    shared = True
    update_private = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        first = initial_weights(lambda: build_unet(self.settings.task), self.settings.seed)
        self.network = SharedNetwork(first, self.sites, rule_of(self.settings))
        privacy = self.settings.update_privacy
        self._noise = UpdateNoise(privacy) if privacy else None

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        if settings.update_privacy:
            with torch.device("meta"):  # only the types matter: no weights, no random numbers
                check_network(build_unet(settings.task).state_dict())

    @property
    def weights(self) -> Tensors:
        """The shared model."""
        return self.network.weights

    def payload(self, phase: Phase, site: str) -> Tensors:
        return self.weights

    def expects(self, phase: Phase) -> Tensors:
        return self.weights if phase == TRAIN else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        self.network.add(site, self._noise.clipped(tensors, weight) if self._noise else tensors, weight)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self.network.close()
            if self._noise:
                self._noise.add_(self.weights)
        return {}

    def files(self) -> dict[str, Tensors]:
        return {self.name: self.weights}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.network = SharedNetwork(files[self.name], self.sites, rule_of(self.settings))
