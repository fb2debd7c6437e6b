"""Many tiny sites in one simulator with two threads: seconds a round, and the server's memory, over those of 6 sites.

Two of 64 sites run at a time, so a round of 64 should take 64 / 6 times as long as one of 6: what is above that grows
faster than the number of sites. How long a site's own training takes does not depend on the others, so it says how busy
the machine was: where it differs too much between the runs, the ratio is no measurement.
"""

from __future__ import annotations

import os
import re
from statistics import mean, median

from benchmarks.report import Check, Outcome
from benchmarks.simulator import Simulator

_FEW, _MANY = 6, 64
_ROUNDS = 5
_IMAGES = 10  # of a middle-sized site
_BAR = 1.3
_DRIFT = 1.25  # of a site's training
_TRAINED = re.compile(r"fedsm task=fedsm_train round=\d+ seconds=([\d.]+)")
_MIB_PER_SITE = 1.0  # of the server's memory, beside two models: a connection, a task, an answer, a history
_UNET = ("--set", "task.unet.channels=[4,8,16]", "--set", "task.unet.residual_units=1")
_OPTIONS = ("--threads", 2, "--selector", "statistics", "--size", 32, "--batch-size", 4, *_UNET)
_UNET_MIB = 0.02


def measure(simulator: Simulator) -> Outcome:
    """The median round of the many over that of the few, which run before and after them; the first is left out."""
    few, many = (simulator.write_data(f"sites_{count}", count, _IMAGES) for count in (_FEW, _MANY))
    load = [os.getloadavg()[0]]
    runs, training = [], []
    for name, data in (("few_before", few), ("many", many), ("few_after", few)):
        run = simulator.run(data, name, _ROUNDS, *_OPTIONS)
        runs.append(run.results)
        training.append(median(map(float, _TRAINED.findall((run.out / "flare.log").read_text(errors="replace")))))
        load.append(os.getloadavg()[0])
    before, of_many, after = (median(run["seconds"]["round"][1:]) for run in runs)
    ratio = of_many / (mean([before, after]) * _MANY / _FEW)
    growth = [run["peak_rss_mb"]["server"] - run["peak_rss_mb"]["server_start"] for run in runs]
    allowed = max(growth[0], growth[2]) + (_MANY - _FEW) * (_MIB_PER_SITE + 2 * _UNET_MIB)
    figures = {
        "few_seconds_before": before,
        "many_seconds": of_many,
        "few_seconds_after": after,
        "many_rounds": runs[1]["seconds"]["round"],
        "many_total_seconds": runs[1]["seconds"]["total"],
        "images": [sum(sum(parts.values()) for parts in run["images"].values()) for run in runs],
        "server_mib": [run["peak_rss_mb"]["server"] for run in runs],
        "server_growth_mib": growth,
        "training_seconds": training,
        "ratio_of_the_same_training": ratio / (training[1] / mean([training[0], training[2]])),
        "load": load,
    }
    busy = max(training) > _DRIFT * min(training)
    error = f"machine busy (a site trained {min(training):.1f} to {max(training):.1f} s): measure again" if busy else ""
    return Outcome(
        [
            Check(f"{_MANY} sites, seconds a round / {_FEW} sites' times {_MANY}/{_FEW}", ratio, _BAR),
            Check(f"{_MANY} sites, server's growth", growth[1], allowed, "MiB"),
        ],
        figures,
        error,
    )
