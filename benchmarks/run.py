"""Measures the project against its bars: `python -m benchmarks.run [--only NAME ...]`.

Exit codes: 0 every bar is held, 1 one is not, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    aggregation,
    data_loading,
    first_round,
    many_sites,
    memory,
    models_on_disk,
    prediction,
    prediction_files,
    report_time,
    round_time,
    rules,
    serving,
    startup,
    wire,
)
from benchmarks.process import Failed, say
from benchmarks.report import Outcome, save, table
from benchmarks.simulator import Simulator

RESULTS = Path(__file__).with_name("results.json")

# In this order: the plain loop of `round` runs before and after the simulator's run that the next two share.
BENCHMARKS: dict[str, Callable[[Simulator], Outcome]] = {
    "startup": startup.measure,
    "first_round": first_round.measure,
    "aggregation": aggregation.measure,
    "models_on_disk": models_on_disk.measure,
    "rules": rules.measure,
    "data_loading": data_loading.measure,
    "prediction": prediction.measure,
    "prediction_files": prediction_files.measure,
    "serving": serving.measure,
    "report": report_time.measure,
    "round": round_time.measure,
    "memory": memory.measure,
    "wire": wire.measure,
    "many_sites": many_sites.measure,
}


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.run", description="Measures the project against its bars.")
    parser.add_argument(
        "--only", action="append", choices=BENCHMARKS, metavar="NAME",
        help=f"run this one and keep what is known of the others (may be repeated): {', '.join(BENCHMARKS)}",
    )  # fmt: skip
    wanted = parser.parse_args(argv).only or list(BENCHMARKS)
    started = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="fedsm_bench_") as folder:
        simulator = Simulator(Path(folder))
        for name, measure in BENCHMARKS.items():
            if name not in wanted:
                continue
            say(f"== {name}")
            try:
                outcomes[name] = measure(simulator)
            except Failed as e:
                outcomes[name] = Outcome(error=str(e))
            save(RESULTS, {name: outcomes[name]})  # at once: what was measured survives a Ctrl-C in the next
    say(f"measured in {time.monotonic() - started:.0f} s; figures: {RESULTS.name} beside this module")
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
