"""The trained selector that works: full-batch gradients up, one Adam at the server.

    site k:  g_k = grad of the mean over its images of CE(f_s(w_s; x), k)      at the received w_s
    server:  w_s <- Adam(w_s, eta_s, sum_k (n_k / n) g_k)

The sum is the gradient of the loss over all images of all sites, so the one-label problem of a single site does
not arise: this is centralized full-batch training of the selector, one step per round. The wire carries w_s each
way, as in Algorithm 1. The gradient is a mean over images: a sum would make Adam's second moment grow with
the square of a site's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fedsm.core.state import copy
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.selector_fedavg import SelectorClient, SelectorServer
from fedsm.tracks.shared_network import SharedNetwork


class SelectorGradientClient(SelectorClient):
    """Collects the gradient over the round's pass; takes no local step.

    Nothing is held twice: the paper's selector has half a gigabyte of weights.
    """

    private = False  # the gradient leaves as it is, without a step

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self.net.load_state_dict(payload)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._n_images = n_images
        self.net.zero_grad(set_to_none=True)

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        self.net.train()
        loss = self.loss(images, labels, rows)
        (loss * (len(images) / self._n_images)).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase != TRAIN:
            return {}
        gradient = {k: p.grad.detach().cpu() for k, p in self.net.named_parameters() if p.grad is not None}
        self.net.zero_grad(set_to_none=True)
        return gradient

    def state(self) -> Tensors:
        """Nothing is kept at the site: Adam lives at the server."""
        return {}

    def load_state(self, state: Tensors) -> None:
        """See `state`."""


class SelectorGradientServer(SelectorServer):
    """Adam over the mean gradient.

    Sites that did not answer take no part in that round's gradient; with no answer at all no step is taken.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._bind(self.weights)

    def _bind(self, weights: Tensors, moments: Tensors | None = None) -> None:
        self._parameters = {k: torch.nn.Parameter(v) for k, v in weights.items()}
        self._adam = torch.optim.Adam(self._parameters.values(), lr=self.settings.selector_lr, betas=(0.9, 0.999))
        for key, parameter in self._parameters.items():
            # By the parameter's name: a file does not keep the order of its tensors.
            entry = {name: moments[f"{key}/{name}"] for name in ("step", "exp_avg", "exp_avg_sq")} if moments else {}
            self._adam.state[parameter] = entry
        self.network = SharedNetwork({k: p.detach() for k, p in self._parameters.items()}, self.sites)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN and self.network.answers:
            all_answered, gradient = self.network.all_answered, self.network.take_mean()
            if not all_answered:  # a slow download may still read the old tensors
                self._bind(copy(self.weights), self._moments())
            for key, parameter in self._parameters.items():
                parameter.grad = gradient[key]
            self._adam.step()
            self._adam.zero_grad(set_to_none=True)
        return {}

    def _moments(self) -> Tensors:
        return {
            f"{key}/{name}": value
            for key, parameter in self._parameters.items()
            for name, value in self._adam.state[parameter].items()
        }

    def files(self) -> dict[str, Tensors]:
        return super().files() | {f"{self.name}.adam": self._moments()}

    def load_files(self, files: dict[str, Tensors]) -> None:
        super().load_files(files)
        self._bind(self.weights, files[f"{self.name}.adam"])

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """Adam's moments of a new output are zero."""
        changed = super().join(files, new)
        moments, weights = files[f"{self.name}.adam"], files[self.name]
        files[f"{self.name}.adam"] = {key: _grown(key, value, weights) for key, value in moments.items()}
        return changed

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        super().leave(files, site)
        moments = files[f"{self.name}.adam"]
        files[f"{self.name}.adam"] = {
            key: value if key.endswith("/step") else self.without_output(key.rpartition("/")[0], value, site)
            for key, value in moments.items()
        }


def _grown(key: str, moment: torch.Tensor, weights: Tensors) -> torch.Tensor:
    """A moment with rows of zeros for new outputs."""
    entry, _, name = key.rpartition("/")
    missing = 0 if name == "step" else len(weights[entry]) - len(moment)
    return torch.cat([moment, moment.new_zeros(missing, *moment.shape[1:])]) if missing else moment
