"""What private training costs in Dice: `python -m benchmarks.private_training DATA --task nuclei --size 64`

The sites' own trainers and the server's tracks in one process, without FLARE: the global and the personal networks of
FedSM, without a selector. All sites are private, with the same epsilon. The networks of the last round are scored on
the test images. No bar: the table is in `docs/explanation/differential-privacy.md`.

Each pair of epsilon and seed is written to the output file when it is done. Run it again to go on; a file of other
settings is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

import torch
from tqdm import tqdm

from app_fedsm.config.build import build_settings
from fedsm.client.site_file import PrivacyOfTraining
from fedsm.client.site_settings import SiteSettings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.core.files import write_json
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import TRAIN as TRAIN_TASK
from fedsm.data.site_folder import list_sites
from fedsm.data.site_rules import RESEARCH
from fedsm.nets import build_unet
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.learner import dice_report

INFINITE = float("inf")
_TRACKS = "{global: {kind: fedavg}, personal: {kind: softpull}}"
_CPU = torch.device("cpu")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.private_training", description=__doc__.partition(": `")[0])
    parser.add_argument("data", type=Path, help="data root with one folder per site")
    parser.add_argument("--task", default="nuclei")
    parser.add_argument("--size", type=int, default=64, help="pixels (default: 64)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--channels", type=int, nargs="+", help="of the U-Net (default: the task's)")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[INFINITE, 8.0, 3.0, 1.0], help="inf: no noise")
    parser.add_argument("--delta", type=float, default=1e-3)
    parser.add_argument("--max-grad-norm", type=float, default=PrivacyOfTraining.model_fields["max_grad_norm"].default)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/private_training.json"))
    given = parser.parse_args(argv)
    asked = {k: v for k, v in vars(given).items() if k not in ("data", "epsilon", "seeds", "out")}
    asked["data"] = str(given.data)
    found = json.loads(given.out.read_text()) if given.out.is_file() else {"asked": asked, "cells": {}}
    if found["asked"] != asked:
        print(f"{given.out} is of other settings: {found['asked']}; choose another --out", file=sys.stderr)
        return 2
    cells = [(epsilon, seed) for seed in given.seeds for epsilon in given.epsilon]
    for epsilon, seed in cells:
        name = f"epsilon {epsilon:g}, seed {seed}"
        if name not in found["cells"]:
            found["cells"][name] = _train(given, epsilon, seed, name)
            write_json(given.out, found)
    for epsilon in given.epsilon:
        done = [found["cells"][f"epsilon {epsilon:g}, seed {seed}"] for seed in given.seeds]
        shared, own = (mean(mean(cell[model].values()) for cell in done) for model in ("global", "own"))
        noise = mean(cell["noise"] for cell in done)
        print(f"epsilon {epsilon:g}: client average of the global model {shared:.3f}, own {own:.3f}; noise {noise:.2f}")
    return 0


def _settings(given: argparse.Namespace, seed: int) -> JobSettings:
    overrides = [f"tracks={_TRACKS}"] + ([f"task.unet.channels={given.channels}"] if given.channels else [])
    return build_settings(
        task=given.task, method="fedsm", size=given.size, rounds=given.rounds, batch_size=given.batch_size, lr=given.lr,
        seed=seed, overrides=overrides,
    )  # fmt: skip


def _train(given: argparse.Namespace, epsilon: float, seed: int, name: str) -> dict:
    """One cell of the table: the test Dice of the global and of each site's own network."""
    settings, sites = _settings(given, seed), list_sites(given.data)
    dp = None
    if epsilon != INFINITE:
        dp = PrivacyOfTraining(epsilon=epsilon, delta=given.delta, max_grad_norm=given.max_grad_norm)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trainers = {}
        for index, site in enumerate(sites):
            own = SiteSettings(
                given.data / site, Path(folder, site), _CPU, torch.get_num_threads(), Path(folder, "cache", site),
                10**10, 1, RESEARCH, 1, 1, dp=dp,
            )  # fmt: skip
            trainers[site] = SiteTrainer(settings, own, site, index, sites, f"{seed:012x}")
        tracks = server_tracks(settings, sites)
        report: dict = {}
        for number in tqdm(range(1, settings.rounds + 1), desc=name, unit="round", disable=None):
            for site, trainer in trainers.items():
                payload = {track: dict(half.payload(TRAIN, site)) for track, half in tracks.items()}
                meta = {"round": number, "tracks": list(tracks)}
                answer = trainer.do(TRAIN_TASK, meta, payload, lambda: False)
                report[site] = answer.meta.get("dp", {})
                for track, update in answer.tracks.items():
                    tracks[track].accept(TRAIN, site, update, float(answer.meta["images"]["train"]))
            for half in tracks.values():
                half.close(TRAIN)
        files = {stem: tensors for half in tracks.values() for stem, tensors in half.files().items()}
        net = build_unet(settings.task)
        dice: dict = {"global": {}, "own": {}}
        for site, trainer in trainers.items():
            for row, model in (("global", "global"), ("own", f"personal.{site}")):
                net.load_state_dict(files[model])
                dice[row][site] = dice_report(net, net, trainer.batches("test"))["score"]
    noise = mean(r.get("noise_multiplier", 0.0) for r in report.values())
    return dice | {"noise": noise, "privacy": report, "cpu_seconds": time.process_time() - started}


if __name__ == "__main__":
    sys.exit(main())
