"""The server's arithmetic against one plain copy of the same bytes.

`python -m benchmarks.aggregation` prints the figures as JSON; `measure` runs it in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import TASK, Simulator

COUNTS = (6, 12, 24, 48, 64, 256)
COPY_BAR = 2.5
GROWTH_BAR = 4.6
_DIFFERENT = 48  # updates, far more than the caches hold; of more sites they come again
_REPETITIONS = 25
_NOISE = 1.5  # if other programs slowed the copy down, the aggregation would look fast


def measure(simulator: Simulator) -> Outcome:
    """Time of `accept` for every site and `aggregate`, all checks included, for growing numbers of sites."""
    say(f"aggregation: {_REPETITIONS} repetitions for {', '.join(map(str, COUNTS))} sites")
    figures = measure_module("benchmarks.aggregation")
    checks = [Check(f"{k} sites, time / copy", figures["over_copy"][str(k)], COPY_BAR) for k in COUNTS]
    checks.append(Check("time of 256 sites / of 64", figures["growth_256_over_64"], GROWTH_BAR))
    noise = figures["copy_median_over_best"]
    error = f"machine busy (a copy took {noise:.1f} times its best): measure again" if noise > _NOISE else ""
    return Outcome(checks, figures, error)


def main() -> None:
    """Measures and prints."""
    import torch
    from tqdm import trange

    from app_fedsm.config.build import build_settings
    from benchmarks.server_rounds import ServerRounds
    from fedsm.core.tensors import payload_bytes
    from fedsm.server.memory import return_freed_memory

    def copy(count: int) -> float:
        started = time.perf_counter()
        for site in range(count):
            for target, source in zip(copies[site % _DIFFERENT], sources[site % _DIFFERENT], strict=True):
                target.copy_(source)
        return time.perf_counter() - started

    torch.manual_seed(0)
    settings = build_settings(TASK, "fedsm", selector="statistics")
    return_freed_memory()  # as the server does at its start: what is large comes from the system each time
    servers = {k: ServerRounds(settings, k) for k in COUNTS}

    # Every site has tensors of its own, as on a server: with one set for all the caches would do the work.
    updates = [servers[COUNTS[0]].update() for _ in range(_DIFFERENT)]
    answers = {k: server.answers(updates) for k, server in servers.items()}
    sources = [[v for tensors in update.values() for v in tensors.values()] for update in updates]
    copies = [[torch.zeros_like(v).fill_(1) for v in tensors] for tensors in sources]

    # Each repetition measures all that is compared, one after the other: a disturbance then affects both.
    seconds = {k: [] for k in COUNTS}
    copy_seconds = {k: [] for k in COUNTS}
    for repetition in trange(1 + _REPETITIONS, desc="aggregation"):
        for k in COUNTS:
            copied, aggregated = copy(k), servers[k].aggregate(answers[k])
            if repetition:  # the first one only warms up
                copy_seconds[k].append(copied)
                seconds[k].append(aggregated)
    figures = {
        "threads": torch.get_num_threads(),
        "bytes": {k: k * payload_bytes(updates[0]) for k in COUNTS},
        "milliseconds": {k: 1000 * median(seconds[k]) for k in COUNTS},
        "copy_milliseconds": {k: 1000 * median(copy_seconds[k]) for k in COUNTS},
        "over_copy": {k: median(a / c for a, c in zip(seconds[k], copy_seconds[k], strict=True)) for k in COUNTS},
        "copy_median_over_best": max(median(c) / min(c) for c in copy_seconds.values()),
        "growth_256_over_64": median(a / b for a, b in zip(seconds[256], seconds[64], strict=True)),
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
