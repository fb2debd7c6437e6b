"""How soon a run is at work: from `fedsm run` to its first finished round, over importing the packages that it needs.

`python -m benchmarks.first_round` measures, prints the table and keeps nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.process import Failed
from benchmarks.report import Check, Outcome, table
from benchmarks.simulator import SITES, Simulator

BAR = 3.0
_IMAGES, _TIMES = 12, 3  # few images: it is the start that is measured
_IMPORT = [sys.executable, "-c", "import torch, monai, nvflare"]


def _import_seconds() -> float:
    started = time.perf_counter()
    if code := subprocess.run(_IMPORT, stdout=subprocess.DEVNULL).returncode:
        raise Failed(f"{_IMPORT[-1]} ended with code {code}")
    return time.perf_counter() - started


def _event_seconds(simulator: Simulator, data: Path, number: int) -> dict[str, float]:
    """Seconds from the command to each event of a run of one round."""
    started = time.time()
    run = simulator.run(data, f"first_round_{number}", 1)
    lines = (run.out / "progress.jsonl").read_text().splitlines()
    events = {event["event"]: event["time"] - started for event in map(json.loads, lines)}
    return events | {"end": time.time() - started}


def measure(simulator: Simulator) -> Outcome:
    """The median of several runs over that of several imports, in turns."""
    data = simulator.write_data("few_images", SITES, _IMAGES)
    _import_seconds()  # what is read from the disk once
    imports, runs = [_import_seconds()], []
    for number in range(_TIMES):
        runs.append(_event_seconds(simulator, data, number))
        imports.append(_import_seconds())
    ratio = median(run["round"] for run in runs) / median(imports)
    rounded = [{name: round(seconds, 2) for name, seconds in run.items()} for run in runs]
    figures = {"ratio": ratio, "import_seconds": imports, "seconds_to_events": rounded}
    return Outcome([Check(f"first round of {SITES} sites / import torch, monai, nvflare", ratio, BAR)], figures)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        outcome = measure(Simulator(Path(folder)))
    print(json.dumps(outcome.figures, indent=1))
    print(table({"first_round": outcome}))
