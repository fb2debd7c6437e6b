"""Time and memory of the robust rules against the mean: `python -m benchmarks.rules RULE K` prints the figures as JSON.

A round of a shared U-Net: K updates arrive one after the other and are dropped by whoever sent them, then the round
closes. And SoftPull of K models. Processor time, because a rule is arithmetic alone.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from statistics import median

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import TASK, Simulator

RULES = ("mean", "trimmed_mean", "median", "multi_krum", "geometric_median")
SITES = 6
TIME_BAR = 100.0  # times the mean: 1 s of a round for U-Nets of 6.5 MB
_SPARE = 4.0  # U-Nets above the updates that are kept
_REPETITIONS = 5
_MIB = 1024 * 1024


def measure(simulator: Simulator) -> Outcome:
    """Every rule in a process of its own."""
    say(f"rules: {', '.join(RULES)}, {SITES} sites")
    figures = {rule: measure_module("benchmarks.rules", rule, SITES) for rule in RULES}
    mean, checks = figures["mean"], []
    for rule in RULES[1:]:
        found = figures[rule]
        for what in ("merge", "pull"):
            found[f"{what}_over_mean"] = found[f"{what}_seconds"] / mean[f"{what}_seconds"]
            checks.append(Check(f"{rule}, {what}, time / mean", found[f"{what}_over_mean"], TIME_BAR))
        found["unets_over_mean"] = found["unets_held"] - mean["unets_held"]
        checks.append(Check(f"{rule}, U-Nets in memory more than the mean", found["unets_over_mean"], SITES + _SPARE))
    return Outcome(checks, figures)


def main() -> None:
    """Measures one rule and prints."""
    import torch

    from app_fedsm.config.build import build_settings
    from fedsm.core.tensors import payload_bytes
    from fedsm.nets import build_unet
    from fedsm.server.memory import return_freed_memory
    from fedsm.tracks.rules import rule_of
    from fedsm.tracks.shared_network import SharedNetwork

    name, count = sys.argv[1], int(sys.argv[2])
    settings = build_settings(TASK, "fedavg", aggregation=name, min_sites=count)
    rule, sites = rule_of(settings), [f"site-{k + 1}" for k in range(count)]
    torch.manual_seed(0)
    weights = {key: value.detach() for key, value in build_unet(settings.task).state_dict().items()}
    return_freed_memory()

    def update() -> dict:
        return {k: torch.randn_like(v) if v.is_floating_point() else v.clone() for k, v in weights.items()}

    def merge() -> float:
        seconds = 0.0
        for site in sites:
            change = update()
            started = time.process_time()
            network.add(site, change, 1.0)
            seconds += time.process_time() - started
        started = time.process_time()
        network.close()
        return seconds + time.process_time() - started

    network = SharedNetwork(weights, sites, rule)
    held = payload_bytes({"global": weights})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    merged = [merge() for _ in range(1 + _REPETITIONS)][1:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    models = [update() for _ in sites]
    pulled = []
    for _ in range(1 + _REPETITIONS):
        started = time.process_time()
        rule.pull(models, 0.7, frozenset())
        pulled.append(time.process_time() - started)
    figures = {
        "threads": torch.get_num_threads(), "unet_mib": held / _MIB, "merge_seconds": median(merged),
        "pull_seconds": median(pulled[1:]), "unets_held": (peak - before) * 1024 / held,
    }  # fmt: skip
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
