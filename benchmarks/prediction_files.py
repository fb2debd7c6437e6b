"""What files cost: `fedsm predict` on 500 images, reading and writing included, over one U-Net on ready batches.

`python -m benchmarks.prediction_files FOLDER` prints the figures; without a folder it measures and prints the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import prediction
from benchmarks.process import Failed, measure_module, say
from benchmarks.report import Check, Outcome, table
from benchmarks.simulator import SITES, Simulator

BAR = 1.10
IMAGES, _FIRST, _BATCH, _REPEATS = 500, 100, 16, 5


def measure(simulator: Simulator | None = None) -> Outcome:
    """The median of several runs, each over the U-Net before and after it."""
    say(f"prediction of files: {IMAGES} images, {_REPEATS} times")
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        measure_module("benchmarks.prediction", "write", folder)
        figures = measure_module("benchmarks.prediction_files", folder)
    what = f"`fedsm predict` on files from the {_FIRST + 1}th on / one U-Net on ready batches"
    return Outcome([Check(what, figures["files_over_unet"], BAR)], figures)


def compare(folder: Path) -> dict:
    """The command and the U-Net in turns, so that what disturbs the machine disturbs both."""
    import torch
    from PIL import Image

    from app_fedsm.cli.main import main
    from fedsm.super_model.model import SuperModel

    model = SuperModel.load(folder / "super_model", "cpu")
    (folder / "images").mkdir()
    size = model.settings.size
    for i in range(IMAGES):
        pixels = prediction._images(size, i % SITES, 1)[0] + 0.1 * torch.rand(3, size, size)
        Image.fromarray((pixels.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()).save(folder / f"images/{i}.png")
    batch = torch.cat([prediction._images(size, i % SITES, 1) for i in range(_BATCH)])
    net = model.net("global")

    def unet() -> float:
        """Seconds an image."""
        started = time.perf_counter()
        with torch.no_grad():
            for _ in range((IMAGES - _FIRST) // _BATCH):
                net(batch)
        return (time.perf_counter() - started) / ((IMAGES - _FIRST) // _BATCH * _BATCH)

    def files(number: int) -> float:
        """Seconds an image, by when its mask was there."""
        out = folder / f"out-{number}"
        command = ["predict", str(folder / "super_model"), str(folder / "images"), "-o", str(out), "--no-overlays"]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*command, "--batch-size", str(_BATCH), "--device", "cpu"])
        done = sorted(path.stat().st_mtime_ns for path in (out / "masks").iterdir())
        if code or len(done) != IMAGES:
            raise Failed(f"fedsm predict ended with code {code} and {len(done)} masks")
        return (done[-1] - done[_FIRST - 1]) / 1e9 / (IMAGES - _FIRST)

    unet(), files(0)  # the first imports and warms up
    rows, before = [], unet()
    for number in range(1, _REPEATS + 1):
        cpu = sum(os.times()[:2])
        found = files(number)
        cpu = sum(os.times()[:2]) - cpu
        after = unet()
        rows.append({"unet": (before + after) / 2, "files": found, "cpu_seconds": round(cpu, 2)})
        before = after
    ratios = [row["files"] / row["unet"] for row in rows]
    return {
        "files_over_unet": median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "milliseconds_an_image": [{k: round(1000 * row[k], 2) for k in ("unet", "files")} for row in rows],
        "cpu_seconds_of_a_run": [row["cpu_seconds"] for row in rows],
        "threads": torch.get_num_threads(),
        "size": size,
        "batch_size": _BATCH,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(compare(Path(sys.argv[1])), sys.stdout)
    else:
        print(table({"prediction_files": measure()}))
