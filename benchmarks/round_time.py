"""What FLARE costs: a simulator round against the same training as a plain loop on the same cores."""

from __future__ import annotations

from statistics import mean, median

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import SITES, SIZE, TASK, Simulator

BAR = 1.10
_PLAIN_ROUNDS = 5
# A median over the best round: a loop that something else slowed down would let the simulator look fast.
_DRIFT = 1.25


def _plain(simulator: Simulator) -> list[float]:
    say(f"plain loop: {_PLAIN_ROUNDS} rounds")
    return measure_module("benchmarks.plain_loop", simulator.data, TASK, SIZE, _PLAIN_ROUNDS)["seconds"]


def measure(simulator: Simulator) -> Outcome:
    """The median round of the simulator over the median round of the loop.

    The loop runs before and after the simulator and the two medians are averaged: a machine that becomes slower or
    faster meanwhile does not show, and one that changes too much is an error. The first round of each loads libraries
    and is left out.
    """
    before = _plain(simulator)
    rounds = simulator.default_run.results["seconds"]["round"]
    after = _plain(simulator)
    loops = [median(before[1:]), median(after[1:])]
    plain, simulated = mean(loops), median(rounds[1:])
    best = min(before[1:] + after[1:])
    busy = max(loops) > _DRIFT * best
    error = f"machine busy (loop {best:.1f} s at best, {max(loops):.1f} s in the median): measure again" if busy else ""
    figures = {
        "simulator_seconds": simulated,
        "plain_seconds": plain,
        "ratio": simulated / plain,
        "simulator_rounds": rounds,
        "plain_rounds_before": before,
        "plain_rounds_after": after,
    }
    return Outcome([Check(f"{SITES} sites, simulator / plain loop", simulated / plain, BAR)], figures, error)
