"""FLARE's simulator in a process of its own, as `fedsm run` starts it: `python -m app_fedsm.runs.flare_simulator ...`.

The arguments are those of `nvflare simulator`. It loads what server and sites need at once, and begins when a line
comes on its standard input: whoever started it prepares the job meanwhile. When the input ends without one, it ends.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from typing import Any

from nvflare.private.fed.app.simulator import simulator, simulator_runner

_LATER = (
    "torch._dynamo",  # which the first optimizer loads; it takes longer than all the rest of torch
    "fedsm.client.workers",
    "fedsm.flare.controller",
    "fedsm.flare.executor",
    "fedsm.nets.monai_parts",
)
_LONGEST = 0.05  # seconds between two looks at whether a part of the simulator has started


class _ShortSleeps:
    """Stands for the module `time` in FLARE's simulator, which looks once a second at what it waits for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleeps, but not for long."""
        time.sleep(min(seconds, _LONGEST))


def _load() -> None:
    """Loads what a worker or the server would load later, each by itself."""
    for name in _LATER:
        importlib.import_module(name)


def main() -> int:
    """Entry point; returns FLARE's own exit code."""
    parser = argparse.ArgumentParser()
    simulator.define_simulator_parser(parser)
    args = parser.parse_args()
    _load()
    if sys.platform == "linux":
        from app_fedsm.runs import worker_factory

        found = worker_factory.start()
        if isinstance(found, worker_factory.Order):
            return found.run()
        simulator_runner.subprocess = found or simulator_runner.subprocess
    if not sys.stdin.readline():
        return 0
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    simulator_runner.time = _ShortSleeps()
    return int(simulator.run_simulator(args) or 0)


if __name__ == "__main__":
    sys.exit(main())
