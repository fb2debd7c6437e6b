"""The trained selector to the letter of Algorithm 1: local Adam steps, then FedAvg.

    site k:  w_s <- Adam(w_s, eta_s, grad CE(f_s(w_s; x), k))     for every batch
    server:  w_s <- sum_k (n_k / n) w_{s,k}

Xu et al., CVPR 2022, Algorithm 1, lines 11 and 15. Every site holds one label only (its own index), so local
steps run away and averaging them hardly helps: kept because the paper says it. `selector_gradient` is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn import functional

from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_selector
from fedsm.selectors.network import check_outputs
from fedsm.tracks.fedavg import AveragedServer, initial_weights
from fedsm.tracks.segmentation import NetworkClient


def output_entries(build: Callable[[], nn.Module]) -> set[str]:
    """The entries of a selector's state dict that have a row a site: those of its last layer."""
    with torch.random.fork_rng(devices=[]):
        net = build()
    last = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    return {f"{last}.weight", f"{last}.bias"}


def _with_rows(old: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """`fresh` with its first rows as they were."""
    return torch.cat([old, fresh[len(old) :]]) if old.shape != fresh.shape else old


class SelectorClient(NetworkClient):
    """A VGG-11 that learns to answer with the site's own index."""

    first = 0  # the output of the first site

    def load_state(self, state: Tensors) -> None:
        """Where sites have joined or left since, the last layer has other rows: its moments start again."""
        shapes = [p.shape for p in self.net.parameters()]
        fits = {i: state.get(f"{i}.exp_avg", torch.zeros(shape)).shape == shape for i, shape in enumerate(shapes)}
        super().load_state({key: v for key, v in state.items() if fits.get(int(key.partition(".")[0]), False)})

    @property
    def lr(self) -> float:
        return self.settings.selector_lr

    def build(self) -> nn.Module:
        return build_selector(self.settings.task, self.first + self.n_sites)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, torch.full((len(logits),), self.index, device=logits.device))

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> dict:
        self.net.eval()
        hits = torch.cat([(self.forward(x).argmax(dim=1) == self.index).float().cpu() for x, _ in batches])
        return {"score": hits.mean().item(), "images": len(hits)}


class SelectorFedAvgServer(AveragedServer):
    """FedAvg of the selectors; what partial participation does is said at `AveragedServer`."""

    first = 0  # the output of the first site

    def build(self) -> nn.Module:
        return build_selector(self.settings.task, self.first + len(self.sites))

    def _empty(self, n_sites: int) -> nn.Module:
        with torch.device("meta"):
            return build_selector(self.settings.task, self.first + n_sites)

    def load_files(self, files: dict[str, Tensors]) -> None:
        check_outputs(self._empty(len(self.sites)), files[self.name])
        super().load_files(files)

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """The network grows an output for each new site, with first weights from the seed; the others stay."""
        check_outputs(self._empty(len(self.sites) - len(new)), files[self.name])
        fresh = initial_weights(self.build, self.settings.seed)
        files[self.name] = {key: _with_rows(files[self.name][key], value) for key, value in fresh.items()}
        return [self.name]

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        check_outputs(self._empty(len(self.sites)), files[self.name])
        files[self.name] = self.leave_model(files[self.name], files, site)

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """Without the site's output: the softmax over those that stay. Nothing is trained again."""
        return {k: self.without_output(k, v, site) for k, v in model.items()}

    def without_output(self, key: str, value: torch.Tensor, site: str) -> torch.Tensor:
        """An entry of the network's, or a moment of it, without a site's output, if it is of the last layer."""
        if key not in output_entries(self.build):
            return value
        row = self.first + self.sites.index(site)
        return torch.cat([value[:row], value[row + 1 :]])
