"""The same training as a plain PyTorch loop: `python -m benchmarks.plain_loop DATA TASK SIZE ROUNDS`.

One process, one site after the other, each step on all cores; nothing of `fedsm.client` or `fedsm.server`. Prints the
seconds of each round as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from monai.losses import DiceLoss
from tqdm import trange

from app_fedsm.config.build import build_settings
from fedsm.core.dice import dice_per_image
from fedsm.core.settings import JobSettings
from fedsm.data.augment import augment_batch
from fedsm.data.dataset import Part, load_site
from fedsm.data.site_folder import list_sites
from fedsm.nets import build_unet

Weights = dict[str, torch.Tensor]


class PlainSite:
    """A site's data, its global and its personal U-Net, and an Adam for each."""

    def __init__(self, folder: Path, settings: JobSettings):
        self.parts = load_site(folder, folder.name, settings)
        self.nets = [build_unet(settings.task) for _ in range(2)]
        self._adams = [torch.optim.Adam(net.parameters(), lr=settings.lr) for net in self.nets]
        self._loss = DiceLoss(sigmoid=True)
        self._batch_size = settings.batch_size
        self._augment = settings.task.augment

    def _batches(self, part: Part, order: torch.Tensor):
        for rows in order.split(self._batch_size):
            yield part.images[rows], part.labels[rows].float()

    @torch.no_grad()
    def validate(self) -> list[float]:
        """Mean Dice of both U-Nets on the validation part."""
        part, scores = self.parts["validation"], []
        for net in self.nets:
            net.eval()
            batches = self._batches(part, torch.arange(len(part)))
            scores.append(torch.cat([dice_per_image(net(x) > 0, y > 0) for x, y in batches]).mean().item())
        return scores

    def train(self) -> float:
        """One epoch in which every batch steps both U-Nets; returns the sum of the losses."""
        part, total = self.parts["train"], 0.0
        for net in self.nets:
            net.train()
        for x, y in self._batches(part, torch.randperm(len(part))):
            x, y = augment_batch(x, y, self._augment, torch.default_generator)
            for net, adam in zip(self.nets, self._adams, strict=True):
                loss = self._loss(net(x), y)
                adam.zero_grad(set_to_none=True)
                loss.backward()
                adam.step()
                total += loss.item()
        return total


def _average(models: list[Weights], shares: list[float]) -> Weights:
    return {key: sum(a * m[key] for a, m in zip(shares, models, strict=True)) for key in models[0]}


def _round(sites: list[PlainSite], w_g: Weights, w_p: list[Weights], lam: float) -> tuple[Weights, list[Weights]]:
    for site, own in zip(sites, w_p, strict=True):
        site.nets[0].load_state_dict(w_g)
        site.nets[1].load_state_dict(own)
        site.validate()
        site.train()
    n = [len(site.parts["train"]) for site in sites]
    w_g = _average([site.nets[0].state_dict() for site in sites], [k / sum(n) for k in n])
    trained = [site.nets[1].state_dict() for site in sites]
    mean = _average(trained, [1 / len(sites)] * len(sites))
    pull = (1 - lam) * len(sites) / (len(sites) - 1)
    return w_g, [{key: v.lerp(mean[key], pull) for key, v in own.items()} for own in trained]


def main() -> None:
    """Trains and prints."""
    root, task, size, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(os.cpu_count() or 1)
    settings = build_settings(task, "fedsm", size=size)
    torch.manual_seed(settings.seed)
    sites = [PlainSite(root / name, settings) for name in list_sites(root)]
    w_g: Weights = build_unet(settings.task).state_dict()
    w_p = [w_g for _ in sites]
    seconds = []
    for _ in trange(rounds, desc="plain loop", unit="round"):
        started = time.perf_counter()
        w_g, w_p = _round(sites, w_g, w_p, settings.task.lam)
        seconds.append(time.perf_counter() - started)
    json.dump({"seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
