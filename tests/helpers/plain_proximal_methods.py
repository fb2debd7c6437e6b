"""FedProx, FT, Ditto and APFL as plain PyTorch loops, written from their formulas: no FLARE, no tracks.

Penalties enter as gradients (w - w_g), not as losses, and APFL's mixture is a function of v, w and alpha.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.func import functional_call

from fedsm.core.settings import JobSettings
from fedsm.data.dataset import load_site, seeded_order
from fedsm.nets import build_unet
from tests.helpers.plain_loop import average, clone
from tests.helpers.plain_recipe import factor_of, loss_of, set_rates, shares_of


class Network:
    """w <- Adam(w, grad F(w) + pull (w - anchor)), with moments that stay."""

    def __init__(self, settings: JobSettings, weights: dict, pull: float = 0.0):
        self.settings, self.pull = settings, pull
        self.net = build_unet(settings.task)
        self.net.load_state_dict(weights)
        self.forget()

    def rate(self, factor: float) -> None:
        """The schedule's factor of a round."""
        set_rates([self.adam], self.settings.lr * factor)

    def forget(self) -> None:
        """Drops Adam's moments."""
        self.adam = torch.optim.Adam(self.net.parameters(), lr=self.settings.lr)

    def step(self, x, y, anchor: dict) -> None:
        self.adam.zero_grad()
        loss_of(self.settings)(self.net(x), y).backward()
        for name, w in self.net.named_parameters():
            w.grad += self.pull * (w.detach() - anchor[name])
        self.adam.step()

    def weights(self) -> dict:
        return clone(self.net.state_dict())


class Ditto:
    """v <- v - eta (grad F(v) + prox (v - w_g))."""

    def __init__(self, settings: JobSettings, start: dict, prox: float):
        self.network = Network(settings, start, prox)

    def start(self, w_g: dict, factor: float) -> None:
        self.w_g = w_g
        self.network.rate(factor)

    def step(self, x, y, w_before: dict, w_after: dict) -> None:
        self.network.step(x, y, self.w_g)

    def model(self) -> dict:
        return self.network.weights()


class FineTune(Ditto):
    """v <- w_g without moments, then v <- v - lr_factor eta grad F(v)."""

    def __init__(self, settings: JobSettings, start: dict, lr_factor: float):
        super().__init__(settings.replace(lr=lr_factor * settings.lr), start, prox=0.0)

    def start(self, w_g: dict, factor: float) -> None:
        self.network.net.load_state_dict(w_g)
        self.network.forget()
        super().start(w_g, factor)


class APFL:
    """vbar = alpha v + (1 - alpha) w; v and alpha follow the gradient at the old vbar."""

    def __init__(self, settings: JobSettings, start: dict, alpha: float, eta_alpha: float):
        self.net, self.settings = build_unet(settings.task), settings
        self.v = {k: torch.nn.Parameter(x.clone()) for k, x in start.items()}
        self.adam = torch.optim.Adam(self.v.values(), lr=settings.lr)
        self.alpha, self.eta_alpha = alpha, eta_alpha
        self.w = start

    def start(self, w_g: dict, factor: float) -> None:
        self.w = w_g
        set_rates([self.adam], self.settings.lr * factor)

    def step(self, x, y, w_before: dict, w_after: dict) -> None:
        vbar = {k: t.requires_grad_() for k, t in self.model().items()}
        loss = loss_of(self.settings)(functional_call(self.net, vbar, (x,)), y)
        gradient = dict(zip(vbar, torch.autograd.grad(loss, list(vbar.values())), strict=True))
        slope = sum(((self.v[k].detach() - w_before[k]).double() * gradient[k]).sum().item() for k in vbar)
        for k, v in self.v.items():
            v.grad = self.alpha * gradient[k]
        self.adam.step()
        self.alpha = min(1.0, max(0.0, self.alpha - self.eta_alpha * slope))
        self.w = w_after

    def model(self) -> dict:
        return {k: self.alpha * v.detach() + (1 - self.alpha) * self.w[k] for k, v in self.v.items()}


def train(data: Path, settings: JobSettings, sites: list[str], mu: float = 0.0, personal=None) -> tuple[dict, dict]:
    """Trains all rounds.

    Args:
        mu: FedProx's pull of the global network; 0 is FedAvg.
        personal: makes a site's personal learner from the initial weights; None: there is none.

    Returns:
        the global weights after the last round; site -> its learner's models from before round 1 to after the last.
    """
    parts = {s: load_site(data / s, s, settings)["train"] for s in sites}
    shares = shares_of(settings, [len(parts[s]) for s in sites])
    torch.manual_seed(settings.seed)
    w_g = clone(build_unet(settings.task).state_dict())
    networks = {s: Network(settings, w_g, mu) for s in sites}
    learners = {s: personal(settings, clone(w_g)) for s in sites} if personal else {}
    history = {s: [learner.model()] for s, learner in learners.items()}

    for number in range(1, settings.rounds + 1):
        factor = factor_of(settings, number)
        for s in sites:
            networks[s].net.load_state_dict(w_g)
            networks[s].rate(factor)
            if personal:
                learners[s].start(w_g, factor)
            for x, y in _batches(parts[s], settings, s, number):
                before = networks[s].weights()
                networks[s].step(x, y, anchor=w_g)
                if personal:
                    learners[s].step(x, y, before, networks[s].weights())
            if personal:
                history[s].append(learners[s].model())
        w_g = average([networks[s].weights() for s in sites], shares)
    return w_g, history


def _batches(part, settings: JobSettings, site: str, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in range(settings.local_epochs):
        generator = torch.Generator().manual_seed(seeded_order(settings, site, number, epoch))
        for rows in torch.randperm(len(part), generator=generator).split(settings.batch_size):
            yield part.images[rows], part.labels[rows].float()
