"""Loading a batch from the mapped cache against one training step of one U-Net, at the paper's 256 px.

Loading is all between two steps: picking the rows, labels to float, augmentation. `python -m benchmarks.data_loading`
prints the figures as JSON; `measure` runs it in a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import TASK, Simulator

BAR = 0.10
_IMAGES = 96
_DRAWN = 512  # pixels of the files, which are then resized
_EPOCHS = 3  # the first is not counted
_NOISE = 1.5  # steps that something else slowed down would let loading look fast
# The example of `docs/reference/settings.md`: the tasks themselves augment nothing.
_AUGMENT = {"flip": "horizontal", "rotate": 15, "scale": 0.1, "intensity": 0.1}


def measure(simulator: Simulator) -> Outcome:
    """Time of loading a batch over that of a step, from the second epoch on, without and with augmentation."""
    say(f"data loading: {_EPOCHS} epochs with the task's augmentation and with all kinds of it")
    figures = measure_module("benchmarks.data_loading")
    checks = [
        Check("loading / U-Net step, task's augmentation", figures["loading_over_step"]["task"], BAR),
        Check("loading / U-Net step, all augmentation", figures["loading_over_step"]["all"], BAR),
    ]
    noise = figures["step_median_over_best"]
    error = f"machine busy (a step took {noise:.1f} times its best): measure again" if noise > _NOISE else ""
    return Outcome(checks, figures, error)


def main() -> None:
    """Measures and prints."""
    import os

    import numpy as np
    import torch
    from monai.losses import DiceLoss
    from PIL import Image
    from tqdm import tqdm

    from app_fedsm.config.build import build_settings
    from fedsm.core.task_settings import AugmentSettings
    from fedsm.data.augment import augment_batch
    from fedsm.data.cache import SiteCache
    from fedsm.data.dataset import load_site
    from fedsm.data.synthetic import draw_image, site_profile
    from fedsm.nets import build_unet

    def own_memory() -> int | None:
        """Bytes that this process holds itself, without mapped files (None: not Linux)."""
        status = Path("/proc/self/status")
        lines = status.read_text().splitlines() if status.is_file() else []
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), None)

    def draw(folder: Path) -> None:
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True)
        profile = site_profile(0, 0)
        for number in tqdm(range(_IMAGES), desc="drawing", unit="image", leave=False):
            drawn = draw_image(profile, np.random.default_rng(number), _DRAWN)
            for part, pixels in zip(("images", "masks"), drawn, strict=True):
                Image.fromarray(pixels).save(folder / part / f"img_{number:03d}.png", compress_level=3)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        adam.zero_grad()
        dice(net(images), labels).backward()
        adam.step()

    def epoch(number: int, augment: AugmentSettings) -> list[tuple[float, float]]:
        """Seconds of loading and of training, batch by batch."""
        generator, seconds = torch.Generator().manual_seed(number), []
        started = time.perf_counter()
        for images, labels in part.batches(settings.batch_size, torch.device("cpu"), seed=number):
            images, labels = augment_batch(images, labels, augment, generator)
            loaded = time.perf_counter()
            step(images, labels)
            seconds.append((loaded - started, time.perf_counter() - loaded))
            bar.update()
            started = time.perf_counter()
        return seconds

    workers = os.cpu_count() or 1
    settings = build_settings(TASK, "fedsm")
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        data, cache = Path(folder, "data"), SiteCache(Path(folder, "cache"), 10**12, workers)
        draw(data)
        started = time.perf_counter()
        parts = load_site(data, "site", settings, cache=cache)
        built = time.perf_counter()
        parts = load_site(data, "site", settings, cache=cache)
        opened = time.perf_counter()
        memory = own_memory()
        walked = [own_memory() for p in parts.values() for _ in p.batches(settings.batch_size, torch.device("cpu"))]
        size = sum(f.stat().st_size for f in cache.folder.rglob("*") if f.is_file())

        torch.manual_seed(0)
        part, net, dice = parts["train"], build_unet(settings.task), DiceLoss(sigmoid=True)
        adam = torch.optim.Adam(net.parameters(), lr=settings.lr)
        kinds = {"task": settings.task.augment, "all": AugmentSettings.from_dict(_AUGMENT)}
        seconds = {name: [] for name in kinds}
        steps = len(kinds) * _EPOCHS * -(-len(part) // settings.batch_size)
        with tqdm(total=steps, desc="training", unit="step") as bar:
            for number in range(_EPOCHS):  # side by side: what disturbs the machine disturbs both
                for name, augment in kinds.items():
                    timed = epoch(number, augment)
                    seconds[name] += timed if number else []
    loading = {name: median(a for a, _ in timed) for name, timed in seconds.items()}
    every_step = [b for timed in seconds.values() for _, b in timed]
    figures = {
        "threads": torch.get_num_threads(),
        "size": settings.size,
        "batch_size": settings.batch_size,
        "loading_over_step": {name: one / median(every_step) for name, one in loading.items()},
        "loading_milliseconds": {name: 1000 * one for name, one in loading.items()},
        "step_milliseconds": 1000 * median(every_step),
        "step_median_over_best": median(every_step) / min(every_step),
        "build_images_a_second": _IMAGES / (built - started),
        "open_milliseconds": 1000 * (opened - built),
        "entry_bytes": size,
        "own_memory_grown_bytes": None if memory is None else max(walked) - memory,
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
