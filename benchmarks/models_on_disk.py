"""A server with many sites: seconds of a round's aggregation and of its checkpoint, and the peak of its memory.

`python -m benchmarks.models_on_disk disk 256` prints the figures as JSON, with the default U-Net; with
`memory 1000 8,16,32` for a small one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from nvflare.fuel.utils.memory_utils import cleanup_memory
from tqdm import trange

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.server_rounds import ServerRounds, on_disk
from benchmarks.simulator import TASK, Simulator
from fedsm.core.model_store import IN_MEMORY, OnDisk
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import payload_bytes
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.memory import peak_bytes
from fedsm.server.record import RunRecord
from fedsm.server.resume import save

PEAK_BAR = 8.0  # U-Nets, whatever K is
GROWTH_BAR = 4.6
SMALL = "8,16,32"  # channels of the network of 1,000 sites
_ROUNDS = 5
_DIFFERENT = 4  # updates; the sites send them in turn
_MIB = 1024 * 1024


def measure(simulator: Simulator) -> Outcome:
    """Personal models on disk with 64 and 256 sites; 1,000 sites with a small network, both ways."""
    figures = {}
    for name, arguments in {
        "disk_64": ("disk", 64), "disk_256": ("disk", 256), "disk_1000_small": ("disk", 1000, SMALL),
        "memory_1000_small": ("memory", 1000, SMALL),
    }.items():  # fmt: skip
        say(f"models on disk: {' '.join(map(str, arguments))}")
        figures[name] = measure_module("benchmarks.models_on_disk", *arguments)
    growth = figures["disk_256"]["aggregation_seconds"] / figures["disk_64"]["aggregation_seconds"]
    checks = [
        Check(f"{k} sites on disk, peak above the start", figures[f"disk_{k}"]["growth_unets"], PEAK_BAR, "U-Nets")
        for k in (64, 256)
    ]
    return Outcome([*checks, Check("on disk, time of 256 sites / of 64", growth, GROWTH_BAR)], figures)


def main() -> None:
    """Measures and prints."""
    import psutil

    from app_fedsm.config.build import build_settings
    from fedsm.server.memory import return_freed_memory

    where, count = sys.argv[1], int(sys.argv[2])
    overrides = [f"personal_models={where}"]
    if len(sys.argv) > 3:
        overrides += [f"task.unet.channels=[{sys.argv[3]}]", "task.unet.residual_units=1"]
    build = partial(build_settings, TASK, "fedsm", selector="statistics")
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as scratch:
        tiny = build(overrides=["task.unet.channels=[4,8]", *overrides[:1]])
        play(tiny, where, 3, Path(scratch, "warm_up"))  # loads the code, which is no model
        return_freed_memory()
        forget_peak()
        start = psutil.Process().memory_info().rss
        figures = play(build(overrides=overrides), where, count, Path(scratch, "measured"))
    growth = peak_bytes() - start
    figures |= {"start_mib": start / _MIB, "growth_mib": growth / _MIB}
    json.dump(figures | {"growth_unets": growth / _MIB / figures["unet_mib"]}, sys.stdout)


def play(settings: JobSettings, where: str, count: int, folder: Path) -> dict[str, float]:
    """Some rounds with a checkpoint after each."""
    server = ServerRounds(settings, count, OnDisk(folder / "models") if where == "disk" else IN_MEMORY)
    answers = server.answers([on_disk(server.update(), folder / f"incoming_{i}") for i in range(_DIFFERENT)])
    checkpoints, record = Checkpoints(folder / FOLDER), RunRecord("0", server.sites)
    cleanup_memory()  # as the controller does when it has made the tracks
    aggregation, checkpoint = [], []
    for number in trange(1 + _ROUNDS, desc=f"{count} sites"):
        aggregation.append(server.aggregate(answers))
        started = time.perf_counter()
        save(checkpoints, number, server.tracks, record, settings)
        checkpoint.append(time.perf_counter() - started)
    unet = payload_bytes({"global": server.template["global"]})
    seconds = {"aggregation_seconds": median(aggregation[1:]), "checkpoint_seconds": median(checkpoint[1:])}
    return {"sites": count, "unet_mib": unet / _MIB} | seconds


def forget_peak() -> None:
    """Lets the process's peak start again from what it holds now."""
    with contextlib.suppress(OSError):  # not Linux: the warm-up is smaller than what is measured
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
