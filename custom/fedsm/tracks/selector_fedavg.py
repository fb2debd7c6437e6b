"""The trained selector to the letter of Algorithm 1: local Adam steps, then FedAvg.

    site k:  w_s <- Adam(w_s, eta_s, grad CE(f_s(w_s; x), k))     for every batch
    server:  w_s <- sum_k (n_k / n) w_{s,k}

Xu et al., CVPR 2022, Algorithm 1, lines 11 and 15. Every site holds one label only (its own index), so local
steps diverge and averaging them hardly helps: kept because the paper says so. `selector_gradient` is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from fedsm.core.state import subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_selector
from fedsm.nets.first_weights import initial_weights
from fedsm.selectors.network import check_outputs
from fedsm.tracks.base import TRAIN, ClientTrack, Phase, Report, ServerTrack
from fedsm.tracks.learner import SCALE, Learner
from fedsm.tracks.shared_network import SharedNetwork


def output_entries(build: Callable[[], nn.Module]) -> set[str]:
    """The entries of a selector's state dict that have one row per site: those of its last layer."""
    with torch.device("meta"):  # only the names matter: no weights, no random numbers
        net = build()
    last = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    return {f"{last}.weight", f"{last}.bias"}


def _with_rows(old: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """`fresh` with its first rows replaced by the old ones."""
    return torch.cat([old, fresh[len(old) :]]) if old.shape != fresh.shape else old


class SelectorClient(ClientTrack):
    """A VGG-11 that learns to answer with the site's own index."""

    private = True
    output_offset: ClassVar[int] = 0  # the output of the first site

    def __init__(self, *args: Any):
        super().__init__(*args)
        net = build_selector(self.settings.task, self.output_offset + self.site.n_sites)
        self.learner = Learner(net, self.settings.selector_lr, self.site.device, self.autocast)
        self._received: Tensors = {}

    @property
    def net(self) -> nn.Module:
        """The selector."""
        return self.learner.net

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self._received = payload
        self.net.load_state_dict(payload)

    def loss(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Loss of a batch: cross entropy against the site's index."""
        logits = self.learner.forward(images)
        return functional.cross_entropy(logits, torch.full((len(logits),), self.site.index, device=logits.device))

    @torch.no_grad()
    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """How often the selector names this site."""
        self.net.eval()
        found = [(self.learner.forward(x).argmax(dim=1) == self.site.index).float().cpu() for x, _ in batches]
        hits = torch.cat(found)
        return {"score": hits.mean().item(), "images": len(hits)}

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        self.net.train()
        return self.learner.descend(self.loss(images, labels, rows))

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        return subtract(self.net.state_dict(), self._received) if phase == TRAIN else {}

    def state(self) -> Tensors:
        return self.learner.moments()

    def load_state(self, state: Tensors) -> None:
        """If sites have joined or left since, the last layer has other rows, and its moments start again."""
        shapes = [p.shape for p in self.net.parameters()]
        fits = {f"{i}": state.get(f"{i}.exp_avg", torch.zeros(s)).shape == s for i, s in enumerate(shapes)}
        self.learner.load_moments(
            {k: v for k, v in state.items() if fits.get(k.partition(".")[0], k.startswith(SCALE))}
        )


class SelectorServer(ServerTrack):
    """FedAvg of the selectors. Sites that did not answer a round take no part; with no answer the model stays."""

    output_offset: ClassVar[int] = 0  # the output of the first site
    against_rules = "each site pushes an output of its own, and would be left out as an outlier of the others"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.network = SharedNetwork(initial_weights(self.build, self.settings.seed), self.sites)

    @property
    def weights(self) -> Tensors:
        """The selector."""
        return self.network.weights

    def build(self) -> nn.Module:
        """The selector as it is before round 1."""
        return build_selector(self.settings.task, self.output_offset + len(self.sites))

    def payload(self, phase: Phase, site: str) -> Tensors:
        return self.weights

    def expects(self, phase: Phase) -> Tensors:
        return self.weights if phase == TRAIN else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        self.network.add(site, tensors, weight)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        if phase == TRAIN:
            self.network.close()
        return {}

    def files(self) -> dict[str, Tensors]:
        return {self.name: self.weights}

    def load_files(self, files: dict[str, Tensors]) -> None:
        check_outputs(self._empty(len(self.sites)), files[self.name])
        self.network = SharedNetwork(files[self.name], self.sites)

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """The network gets an output for each new site, with first weights from the seed; the others stay."""
        check_outputs(self._empty(len(self.sites) - len(new)), files[self.name])
        fresh = initial_weights(self.build, self.settings.seed)
        files[self.name] = {key: _with_rows(files[self.name][key], value) for key, value in fresh.items()}
        return [self.name]

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        check_outputs(self._empty(len(self.sites)), files[self.name])
        files[self.name] = self.leave_model(files[self.name], files, site)

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """Without the site's output: the softmax is over those that stay. Nothing is trained again."""
        return {k: self.without_output(k, v, site) for k, v in model.items()}

    def without_output(self, key: str, value: torch.Tensor, site: str) -> torch.Tensor:
        """An entry of the network, or a moment of it; one of the last layer loses the site's row."""
        if key not in output_entries(self.build):
            return value
        row = self.output_offset + self.sites.index(site)
        return torch.cat([value[:row], value[row + 1 :]])

    def _empty(self, n_sites: int) -> nn.Module:
        with torch.device("meta"):
            return build_selector(self.settings.task, self.output_offset + n_sites)
