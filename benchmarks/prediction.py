"""What the super model costs beside its parts: Algorithm 2 over one U-Net, loading over reading, memory over weights.

`python -m benchmarks.prediction PART FOLDER` prints the figures of a part; each runs in its own process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import SITES, TASK, Simulator

BARS = {"algorithm_2": 1.15, "loading": 2.0, "memory": 1.0}
_BATCH, _REPEATS, _LOADS = 24, 7, 9
_NOISE = 1.5  # a U-Net that something else slowed down would let the selector look fast
_SLACK = 2 * 1024 * 1024  # bytes of Python objects beside the weights


def measure(simulator: Simulator) -> Outcome:
    """Time of selecting and segmenting a batch over one U-Net on it; of loading over reading; memory over weights."""
    say(f"prediction: {_REPEATS} batches of {_BATCH} images, {_LOADS} loads of a super model of {SITES} sites")
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        measure_module("benchmarks.prediction", "write", folder)
        speed, loading, memory = (
            measure_module("benchmarks.prediction", part, folder) for part in ("speed", "loading", "memory")
        )
    checks = [
        Check("Algorithm 2 / one U-Net, 256 px, batches", speed["algorithm_2_over_unet"], BARS["algorithm_2"]),
        Check("loading / reading the same bytes from disk", loading["loading_over_reading"], BARS["loading"]),
        Check("memory that loading and predicting hold / weights", memory["held_over_weights"], BARS["memory"]),
    ]
    noise = speed["unet_median_over_best"]
    error = f"machine busy (a batch took {noise:.1f} times its best): measure again" if noise > _NOISE else ""
    return Outcome(checks, {"speed": speed, "loading": loading, "memory": memory}, error)


def write(folder: Path) -> dict:
    """A super model of default size with classes that draw apart, so that a batch needs several of its networks."""
    import torch

    from app_fedsm.config.build import build_settings
    from fedsm.nets import build_unet
    from fedsm.selectors.descriptor import describe
    from fedsm.selectors.gaussian import gaussian_classes, pack
    from fedsm.super_model.artefact import save_super_model

    settings, sites = build_settings(TASK, "fedsm"), [f"site-{k + 1}" for k in range(SITES)]
    torch.manual_seed(0)
    names = ["global", *(f"personal.{s}" for s in sites)]
    networks = {name: dict(build_unet(settings.task).state_dict()) for name in names}
    sums = []
    for k in range(SITES):
        rows = describe(_images(settings.size, k, 16))
        outer = pack(rows.T @ rows)
        sums.append({"n": torch.tensor(16.0, dtype=torch.float64), "sum": rows.sum(0), "outer": outer})
    selector = gaussian_classes(sums) | {"shrinkage": torch.tensor(0.1, dtype=torch.float64)}
    manifest = {"task": settings.task.name, "method": settings.method, "sites": sites, "gamma": 0.5}
    manifest["selector"] = "statistics"
    save_super_model(folder / "super_model", settings, manifest, networks | {"selector": selector}, {})
    return {}


def _images(size: int, site: int, count: int):
    """Images of a site's own brightness."""
    import torch
    from torch.nn import functional

    noise = torch.rand(count, 3, size // 8, size // 8, generator=torch.Generator().manual_seed(site))
    return functional.interpolate(noise, (size, size), mode="bilinear") * (0.4 + 0.1 * site)


def speed(folder: Path) -> dict:
    """The two side by side, so that what disturbs the machine disturbs both; the best of each counts."""
    from statistics import median

    import torch

    from fedsm.super_model.model import SuperModel

    model = SuperModel.load(folder / "super_model", "cpu")
    size = model.settings.size
    images = torch.cat([_images(size, k, _BATCH // SITES) for k in range(SITES)])
    images = images[torch.randperm(_BATCH, generator=torch.Generator().manual_seed(0))]
    one = model.net("global")
    seconds: dict[str, list[float]] = {"unet": [], "super_model": [], "select": []}
    steps = {
        "unet": lambda: one(images),
        "super_model": lambda: model.predict_batch(images),
        "select": lambda: model.select(images),
    }
    with torch.no_grad():
        chosen = model.predict_batch(images).selection.choices.unique().tolist()
        for _ in range(_REPEATS):
            for name, step in steps.items():
                started = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - started)
    return {
        "threads": torch.get_num_threads(),
        "size": size,
        "batch_size": _BATCH,
        "models_chosen": chosen,
        "algorithm_2_over_unet": min(seconds["super_model"]) / min(seconds["unet"]),
        "select_over_unet": min(seconds["select"]) / min(seconds["unet"]),
        "unet_milliseconds_an_image": 1000 * min(seconds["unet"]) / _BATCH,
        "unet_median_over_best": median(seconds["unet"]) / min(seconds["unet"]),
    }


def loading(folder: Path) -> dict:
    """Both from the disk: what the system remembers of the files is dropped before each."""
    from fedsm.super_model.model import SuperModel

    path = folder / "super_model"
    files = sorted(path.iterdir())

    def forget() -> None:
        for file in files:
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)

    steps = {"read": lambda: [file.read_bytes() for file in files], "load": lambda: SuperModel.load(path, "cpu")}
    seconds: dict[str, dict[str, list[float]]] = {state: {name: [] for name in steps} for state in ("cold", "warm")}
    for number in range(_LOADS + 1):
        for name, step in steps.items():
            for state in seconds:
                if state == "cold":
                    forget()
                started = time.perf_counter()
                step()
                if number:  # the first imports and warms up
                    seconds[state][name].append(time.perf_counter() - started)
    best = {state: {name: min(times) for name, times in s.items()} for state, s in seconds.items()}
    return {
        "bytes": sum(file.stat().st_size for file in files),
        "loading_over_reading": best["cold"]["load"] / best["cold"]["read"],
        "loading_over_reading_from_the_page_cache": best["warm"]["load"] / best["warm"]["read"],
        "milliseconds": {state: {name: 1000 * s for name, s in times.items()} for state, times in best.items()},
    }


def memory(folder: Path) -> dict:
    """Own and mapped memory that grows with loading and with the networks that were made, over the weights' bytes."""
    import torch

    from fedsm.super_model.model import SuperModel

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    path = folder / "super_model"
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    for network in ("unet", "again"):  # everything that is imported and made once
        model = SuperModel.load(path, "cpu")
        for name in model.models:
            model.net(name)(torch.zeros(1, 3, 64, 64))
        del model, network
    before = resident()
    model = SuperModel.load(path, "cpu")
    total = sum(float(p.sum()) for name in model.models for p in model.net(name).parameters())  # touches every page
    grown = resident() - before
    return {
        "weights_bytes": weights,
        "grown_bytes": grown,
        "held_over_weights": max(0, grown - _SLACK) / weights,
        "checked": total == total,
    }


if __name__ == "__main__":
    parts = {"write": write, "speed": speed, "loading": loading, "memory": memory}
    json.dump(parts[sys.argv[1]](Path(sys.argv[2])), sys.stdout)
