"""SCAFFOLD, Per-FedAvg, pFedMe, FedBN and FedRep as plain PyTorch loops, from the papers' formulas, without FLARE
and tracks.

And a network of one weight, for arithmetic that a person can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from fedsm.core.dice import dice_per_image
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import load_site, seeded_order
from fedsm.nets import build_unet
from fedsm.tracks.base import SiteContext
from tests.helpers.plain_loop import average, averaged, clone
from tests.helpers.plain_recipe import factor_of, loss_of, set_rates, shares_of
from tests.helpers.small_jobs import small_settings


class Sites:
    """What the loops share: images, the order of batches, the first weights."""

    def __init__(self, data: Path, settings: JobSettings, sites: list[str]):
        self.settings, self.names = settings, sites
        self.parts = {s: load_site(data / s, s, settings) for s in sites}
        self.shares = shares_of(settings, [len(self.parts[s]["train"]) for s in sites])
        torch.manual_seed(settings.seed)
        self.first = clone(build_unet(settings.task).state_dict())
        self.loss = loss_of(settings)

    def batches(self, site: str, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A site's batches in a round."""
        train = self.parts[site]["train"]
        for epoch in range(self.settings.local_epochs):
            seed = seeded_order(self.settings, site, number, epoch)
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
            for rows in order.split(self.settings.batch_size):
                # In the order in which a site's cache holds them: batch norm rounds otherwise with other strides.
                yield train.images[rows].contiguous(), train.labels[rows].float().contiguous()

    def rate(self, number: int, adams: Iterable[torch.optim.Optimizer]) -> float:
        """A round's learning rate, which the optimizers get."""
        eta = self.settings.lr * factor_of(self.settings, number)
        set_rates(adams, eta)
        return eta

    def nets(self) -> dict[str, nn.Module]:
        """A network a site, all with the first weights."""
        nets = {s: build_unet(self.settings.task) for s in self.names}
        for net in nets.values():
            net.load_state_dict(self.first)
        return nets

    def gradient(self, weights: dict, batch: tuple) -> dict:
        """grad f(weights; batch)."""
        net = build_unet(self.settings.task)
        net.load_state_dict(weights)
        self.loss(net(batch[0]), batch[1]).backward()
        return {k: p.grad for k, p in net.named_parameters()}

    @torch.no_grad()
    def best(self, site: str, models: list[dict]) -> dict:
        """The first of the models with the highest validation Dice; with `ema`, of their averages up to each round."""
        part, net, scores = self.parts[site]["validation"], build_unet(self.settings.task).eval(), []
        if self.settings.ema:  # the first model, from before round 1, is in no average
            models = models[:1] + [averaged(self.settings, models[1:t]) for t in range(2, len(models) + 1)]
        for weights in models:
            net.load_state_dict(weights)
            scores.append(dice_per_image(net(part.images[:]) > 0, part.labels[:] > 0).mean().item())
        return models[scores.index(max(scores))]


def scaffold(data: Path, settings: JobSettings, sites: list[str], optimizer: str) -> dict[str, dict]:
    """y <- y - eta (g + c - c_k); c_k+ = c_k - c + (w - y) / (steps eta); c <- c + sum (n_k / n) (c_k+ - c_k)."""
    s = Sites(data, settings, sites)
    nets = s.nets()
    adams = {k: torch.optim.Adam(nets[k].parameters()) for k in sites}
    w = s.first
    c = {name: torch.zeros_like(p) for name, p in nets[sites[0]].named_parameters()}
    c_k = {k: clone(c) for k in sites}
    for number in range(1, settings.rounds + 1):
        changes = []
        eta = s.rate(number, adams.values())
        for k in sites:
            nets[k].load_state_dict(w)
            steps = 0
            for x, y in s.batches(k, number):
                nets[k].zero_grad()
                s.loss(nets[k](x), y).backward()
                before = clone(dict(nets[k].named_parameters()))
                if optimizer == "adam":
                    adams[k].step()
                with torch.no_grad():
                    for name, p in nets[k].named_parameters():
                        g = (before[name] - p) / eta if optimizer == "adam" else p.grad
                        p.copy_(before[name] - eta * (g + c[name] - c_k[k][name]))
                steps += 1
            new = {
                name: c_k[k][name] - c[name] + (w[name] - p.detach()) / (steps * eta)
                for name, p in nets[k].named_parameters()
            }
            changes.append({name: new[name] - c_k[k][name] for name in c})
            c_k[k] = new
        w = average([nets[k].state_dict() for k in sites], s.shares)
        c = {name: c[name] + sum(p * d[name] for p, d in zip(s.shares, changes, strict=True)) for name in c}
    return {"global": w, "global.controls": c}


def perfedavg(data: Path, settings: JobSettings, sites: list[str], a: float, variant: str, steps: int):
    """The meta model, and each site's adapted models: the last one and the best."""
    s = Sites(data, settings, sites)
    nets = s.nets()
    adams = {k: torch.optim.Adam(nets[k].parameters(), lr=settings.lr) for k in sites}
    w, thetas = s.first, {k: [s.first] for k in sites}
    for number in range(1, settings.rounds + 1):
        s.rate(number, adams.values())
        for k in sites:
            batches = list(s.batches(k, number))
            theta = w
            for batch in batches[:steps]:
                theta = moved(theta, s.gradient(theta, batch), -a)
            thetas[k].append(theta)
            nets[k].load_state_dict(w)
            for i in range(0, len(batches), 2):
                first, second = batches[i], batches[min(i + 1, len(batches) - 1)]
                here = clone(nets[k].state_dict())
                v = s.gradient(moved(here, s.gradient(here, first), -a), second)
                if variant == "hf":
                    d = 0.01 / sum(g.double().square().sum() for g in v.values()).sqrt().item()
                    plus, minus = (s.gradient(moved(here, v, sign * d), first) for sign in (1, -1))
                    v = {name: v[name] - a * (plus[name] - minus[name]) / (2 * d) for name in v}
                for name, p in nets[k].named_parameters():
                    p.grad = v[name]
                adams[k].step()
        w = average([nets[k].state_dict() for k in sites], s.shares)
    return w, {k: thetas[k][-1] for k in sites}, {k: s.best(k, thetas[k]) for k in sites}


def pfedme(data: Path, settings: JobSettings, sites: list[str], prox: float, steps: int, a: float, eta: float, beta):
    """w, and each site's theta: the last one and the best."""
    s = Sites(data, settings, sites)
    w, thetas = s.first, {k: [s.first] for k in sites}
    for number in range(1, settings.rounds + 1):
        trained, factor = [], factor_of(settings, number)
        for k in sites:
            theta = w_k = w
            for batch in s.batches(k, number):
                for _ in range(steps):
                    g = s.gradient(theta, batch)
                    # argmin of <g, t> + |t - theta|^2 / 2a + prox / 2 |t - w|^2
                    theta = {n: (theta[n] / a - g[n] + prox * w_k[n]) / (1 / a + prox) for n in theta}
                w_k = {n: w_k[n] - factor * eta * prox * (w_k[n] - theta[n]) for n in w_k}
            thetas[k].append(theta)
            trained.append(w_k)
        mean = average(trained, s.shares)
        w = {n: (1 - beta) * w[n] + beta * mean[n] for n in w}
    return w, {k: thetas[k][-1] for k in sites}, {k: s.best(k, thetas[k]) for k in sites}


def fedbn(data: Path, settings: JobSettings, sites: list[str]):
    """The averaged part, and each site's best network: it around the site's own norm layers."""
    s = Sites(data, settings, sites)
    nets = s.nets()
    adams = {k: torch.optim.Adam(nets[k].parameters(), lr=settings.lr) for k in sites}
    kept = {
        f"{name}.{key}"
        for name, module in nets[sites[0]].named_modules()
        if "Norm" in type(module).__name__
        for key in module.state_dict()
    }
    u = {key: value for key, value in s.first.items() if key not in kept}
    seen = {k: [clone(s.first)] for k in sites}
    for number in range(1, settings.rounds + 1):
        s.rate(number, adams.values())
        for k in sites:
            for x, y in s.batches(k, number):
                adams[k].zero_grad()
                s.loss(nets[k](x), y).backward()
                adams[k].step()
        mean = average([nets[k].state_dict() for k in sites], s.shares)
        u = {key: mean[key] for key in u}
        for k in sites:
            nets[k].load_state_dict(nets[k].state_dict() | u)
            seen[k].append(clone(nets[k].state_dict()))
    return u, {k: seen[k][-1] for k in sites}, {k: s.best(k, seen[k]) for k in sites}


def fedrep(data: Path, settings: JobSettings, sites: list[str], steps: int):
    """The averaged body, and each site's networks, it under the site's own head: the last one and the best.

    An Adam for each part: they share nothing.
    """
    s = Sites(data, settings, sites)
    nets = s.nets()
    heads = {k: list(nets[k].model[2].parameters()) for k in sites}
    bodies = {k: [*nets[k].model[0].parameters(), *nets[k].model[1].parameters()] for k in sites}
    head_adams = {k: torch.optim.Adam(heads[k], lr=settings.lr) for k in sites}
    body_adams = {k: torch.optim.Adam(bodies[k], lr=settings.lr) for k in sites}
    phi = {key: value for key, value in s.first.items() if not key.startswith("model.2.")}
    seen = {k: [clone(s.first)] for k in sites}
    for number in range(1, settings.rounds + 1):
        s.rate(number, [*head_adams.values(), *body_adams.values()])
        for k in sites:
            train = s.parts[k]["train"]
            in_order = [
                (train.images[rows].contiguous(), train.labels[rows].float().contiguous())
                for rows in torch.arange(len(train)).split(settings.batch_size)
            ]
            walk = [(head_adams[k], b) for b in in_order for _ in range(steps)]
            for adam, (x, y) in walk + [(body_adams[k], b) for b in s.batches(k, number)]:
                nets[k].zero_grad()
                s.loss(nets[k](x), y).backward()
                adam.step()
        mean = average([nets[k].state_dict() for k in sites], s.shares)
        phi = {key: mean[key] for key in phi}
        for k in sites:
            nets[k].load_state_dict(nets[k].state_dict() | phi)
            seen[k].append(clone(nets[k].state_dict()))
    return phi, {k: seen[k][-1] for k in sites}, {k: s.best(k, seen[k]) for k in sites}


def moved(weights: dict, direction: dict, by: float) -> dict:
    """weights + by * direction."""
    return {k: v + by * direction[k] for k, v in weights.items()}


class Line(nn.Module):
    """f(w; x) = w x, one weight."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


def tiny(client: type, net: type = Line, lr: float = 0.1, **options):
    """A client half with a tiny network and the loss (f - y)^2 / 2: with x = 1, y = 0 its gradient is w."""

    class Tiny(client):
        def build(self) -> nn.Module:
            return net()

        def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (logits - labels).square().mean() / 2

    return Tiny(small_settings(lr=lr), options, SiteContext(0, 2, torch.device("cpu")))


def batch(x: float, y: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """One image of one pixel."""
    return torch.full((1, 1, 1, 1), x), torch.full((1, 1, 1, 1), y)


def one(value: float) -> dict[str, torch.Tensor]:
    """Weights of a `Line`."""
    return {"w": torch.tensor([value])}
