"""Algorithm 1 as a plain PyTorch loop: no FLARE, no tracks, no running means. Written from the paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from fedsm.core.settings import JobSettings
from fedsm.data.dataset import load_site, seeded_order
from fedsm.nets import build_selector, build_unet
from tests.helpers.plain_recipe import augmented, factor_of, loss_of, set_rates, shares_of, weights_of


def fed_avg(w: dict, trained: list[dict], n: list[int]) -> dict:
    """sum_k (n_k / n) w_k (line 15)."""
    return average(trained, [n_k / sum(n) for n_k in n])


def soft_pull(w: list[dict], trained: list[dict], lam: float) -> list[dict]:
    """lam w_k + (1 - lam) / (K - 1) sum_{j != k} w_j for each of the K (line 16)."""
    others = (1 - lam) / (len(trained) - 1)
    return [average(trained, [lam if j == k else others for j in range(len(trained))]) for k in range(len(trained))]


def algorithm_1(
    data: Path, settings: JobSettings, sites: list[str], lam: float, selector: str, present: dict | None = None,
    lost: dict | None = None, merge: tuple[Callable, Callable] = (fed_avg, soft_pull),
    down: Callable[[dict], dict] = lambda w: w,
) -> dict[str, dict]:  # fmt: skip
    """Trains all rounds.

    Args:
        selector: `fedavg` (local Adam steps, averaged), `gradient` (full-batch gradient, one Adam) or `none`.
        present: round -> the sites that take part in it, where not all do. The others keep what they have.
        lost: round -> sites that train in it without taking part: their update is lost, their Adam has gone on.
        merge: how global and personal models are made of the server's models and what the sites trained.
        down: what becomes of a U-Net on its way to a site.

    Returns:
        model name -> weights after the last round; with `ema` their average, and under `NAME.raw` themselves.
    """
    count = len(sites)
    parts = {s: load_site(data / s, s, settings)["train"] for s in sites}
    n = {s: len(parts[s]) for s in sites}

    torch.manual_seed(settings.seed)
    w_g = clone(build_unet(settings.task).state_dict())
    w_p = {s: clone(w_g) for s in sites}
    torch.manual_seed(settings.seed)
    w_s = clone(build_selector(settings.task, count).state_dict())

    nets = {
        s: (build_unet(settings.task), build_unet(settings.task), build_selector(settings.task, count)) for s in sites
    }
    rates = (settings.lr, settings.lr, settings.selector_lr)
    adams = {s: [torch.optim.Adam(m.parameters(), lr=r) for m, r in zip(nets[s], rates, strict=True)] for s in sites}
    server_net = build_selector(settings.task, count)
    server_net.load_state_dict(w_s)
    server_adam = torch.optim.Adam(server_net.parameters(), lr=settings.selector_lr)
    dice = loss_of(settings)
    past: dict[str, list[dict]] = {}

    for number in range(1, settings.rounds + 1):
        gradients = []
        here = (present or {}).get(number, sites)
        at_work = {*here, *(lost or {}).get(number, ())}
        weights, shares = (of(settings, [n[s] for s in here]) for of in (weights_of, shares_of))
        for s in sites:
            set_rates(adams[s][:2], settings.lr * factor_of(settings, number))
        for k, s in enumerate(sites):
            if s not in at_work:
                continue
            f_g, f_p, f_s = nets[s]
            f_g.load_state_dict(down(w_g))
            f_p.load_state_dict(down(w_p[s]))
            f_s.load_state_dict(w_s)
            f_s.zero_grad()
            torch.manual_seed(seeded_order(settings, s, number, -1))
            for epoch in range(settings.local_epochs):
                seed = seeded_order(settings, s, number, epoch)
                rng = torch.Generator().manual_seed(seed)
                order = torch.randperm(n[s], generator=torch.Generator().manual_seed(seed))
                for rows in order.split(settings.batch_size):
                    x, y = augmented(settings, parts[s].images[rows], parts[s].labels[rows].float(), rng)
                    for net, adam in ((f_g, adams[s][0]), (f_p, adams[s][1])):
                        adam.zero_grad()
                        dice(net(x), y).backward()
                        adam.step()
                    y_s = torch.full((len(x),), k)
                    if selector == "fedavg":
                        adams[s][2].zero_grad()
                        functional.cross_entropy(f_s(x), y_s).backward()
                        adams[s][2].step()
                    elif selector == "gradient":
                        loss = functional.cross_entropy(f_s(x), y_s, reduction="sum")
                        (loss / (n[s] * settings.local_epochs)).backward()
            if s in here:
                gradients.append([p.grad for p in f_s.parameters()])
        w_g = merge[0](w_g, [nets[s][0].state_dict() for s in here], weights)
        pulled = merge[1]([w_p[s] for s in here], [nets[s][1].state_dict() for s in here], lam)
        w_p |= dict(zip(here, pulled, strict=True))
        for model, w in {"global": w_g, **{f"personal.{s}": w_p[s] for s in here}}.items():
            past.setdefault(model, []).append(clone(w))
        if selector == "fedavg":
            w_s = average([nets[s][2].state_dict() for s in here], shares)
        elif selector == "gradient":
            for i, parameter in enumerate(server_net.parameters()):
                parameter.grad = sum(share * g[i] for share, g in zip(shares, gradients, strict=True))
            server_adam.step()
            w_s = clone(server_net.state_dict())
    last = {"global": w_g} | {f"personal.{s}": w for s, w in w_p.items()}
    if settings.ema:
        raw = {f"{model}.raw": weights for model, weights in last.items()}
        last = {model: averaged(settings, past[model]) for model in last} | raw
    return last | {"selector": w_s}


def clone(weights: dict) -> dict:
    """A copy of a state dict."""
    return {k: v.detach().clone() for k, v in weights.items()}


def averaged(settings: JobSettings, models: list[dict]) -> dict:
    """`ema` of the weights that the rounds 1 to t made: round i weighs (1 - m) m^(t - i) / (1 - m^t)."""
    m, t = settings.ema, len(models)
    mean = average(models, [(1 - m) * m ** (t - i) / (1 - m**t) for i in range(1, t + 1)])
    return {key: mean[key] if value.is_floating_point() else value for key, value in models[-1].items()}


def average(models: list[dict], shares: list[float]) -> dict:
    """sum_k share_k w_k, in float64: the reference should not have rounding errors of its own."""
    return {key: sum(a * m[key].double() for a, m in zip(shares, models, strict=True)).float() for key in models[0]}


def largest_difference(a: dict, b: dict) -> float:
    """The largest absolute difference of two state dicts."""
    assert set(a) == set(b)
    return max((a[k].double() - b[k].double()).abs().max().item() for k in a)
