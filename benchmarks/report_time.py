"""How long a person waits for the report of `make demo`: seconds, because that is what the bar says.

The demo's run has 40 rounds. What the report costs does not depend on them, so this one has two.
"""

from __future__ import annotations

import time

from benchmarks.process import run_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import SITES, Simulator

BAR = 60.0
_IMAGES = 40  # of a middle-sized site, as `fedsm data synth` draws them
_TRAINING = ("--batch-size", 4, "--lr", "3e-3")


def measure(simulator: Simulator) -> Outcome:
    """One report, from the command to its end: loading, scores, map, loss surfaces, figures."""
    run = simulator.run(simulator.write_data("demo", SITES, _IMAGES), "demo_run", 2, *_TRAINING)
    say("fedsm report of it")
    started = time.perf_counter()
    run_module("app_fedsm.cli.main", "report", run.out)
    seconds = time.perf_counter() - started
    return Outcome([Check("`fedsm report` of the demo", seconds, BAR, "s")], {"seconds": seconds})
