"""Settings and sites of seconds: three small sites, 32 px, a U-Net of three levels, a narrow VGG-11."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from app_fedsm.config.build import build_settings
from fedsm.core.settings import JobSettings

SITES = ["site-1", "site-2", "site-3"]
# what `small_settings` says: for the command line, and for recipes
SMALL = [
    "--task", "retinal", "--size", "32", "--batch-size", "4", "--lr", "1e-3", "--selector-lr", "1e-3",
    "--set", "task.unet.channels=[4,8,16]", "--set", "task.unet.residual_units=1",
    "--set", "task.selector_net={head: gap, width: 0.0625}", "--round-timeout", "600",
    "--set", "selection=algorithm2",
]  # fmt: skip
SMALL_OPTIONS = {
    "task": "retinal", "size": 32, "batch_size": 4, "lr": 1e-3, "selector_lr": 1e-3, "round_timeout": 300,
    "selection": "algorithm2",
    "overrides": [
        "task.unet.channels=[4,8,16]",
        "task.unet.residual_units=1",
        "task.selector_net={head: gap, width: 0.0625}",
    ],
}  # fmt: skip
# Every ingredient of the training recipe but augmentation, which the plain loops of single methods do not have. Another
# seed: with 0, first weights that differ by 1e-7 make pFedMe's plain loop differ by 7e-5: an activation at its kink.
RECIPE = {"loss": "dice+ce", "schedule": "cosine", "warmup_rounds": 1, "ema": 0.5, "site_weights": "equal", "seed": 1}

# the smallest centralized run
TINY = [
    "run", "--method", "centralized", "--task", "retinal", "--rounds", "2", "--size", "32", "--batch-size", "4",
    "--set", "task.unet.channels=[4,8,16]", "--set", "task.unet.residual_units=1",
]  # fmt: skip


def small_settings(**given) -> JobSettings:
    """A job of seconds: 32 px, a U-Net of three levels, a narrow VGG-11.

    lr is 1e-3, not more: at 3e-3 one weight with a tiny gradient made the global models of the federated run and of
    the plain loop differ by 2.1e-5 after three rounds, from float32 rounding that Adam amplifies; at 1e-3 by 1.2e-7.
    """
    overrides = [*SMALL_OPTIONS["overrides"], *given.pop("overrides", [])]
    return build_settings(**({"method": "fedsm", "rounds": 3} | SMALL_OPTIONS | given | {"overrides": overrides}))


def write_site(folder: Path, count: int, seed: int, size: int = 40) -> None:
    """A site of noisy discs in its own colour, with 0/1/2 masks."""
    rng = np.random.default_rng(seed)
    colour = rng.uniform(60, 200, 3)
    rows, columns = np.mgrid[:size, :size]
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        centre, radius = rng.uniform(size * 0.35, size * 0.65, 2), rng.uniform(size * 0.15, size * 0.25)
        distance = np.hypot(rows - centre[0], columns - centre[1])
        mask = (distance < radius).astype(np.uint8) + (distance < radius / 2).astype(np.uint8)
        image = colour * (0.5 + 0.25 * mask[..., None]) + rng.normal(0, 12, (size, size, 3))
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"case_{i:02d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"case_{i:02d}.png")
