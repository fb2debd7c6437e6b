"""Real runs of `fedsm run`, and what they leave behind. One of them serves three benchmarks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.process import run_module, say

TASK = "retinal"
SITES = 6
SIZE = 64
ROUNDS = 6
IMAGES = 140  # of a middle-sized site: a round then takes seconds, and FLARE's polling does not decide


@dataclass(frozen=True)
class Simulation:
    """A finished run: its results.json, the bytes that the loopback received meanwhile (None: not Linux), its log."""

    results: dict
    loopback_bytes: int | None
    log: str


def loopback_bytes() -> int | None:
    """Bytes that `lo` has received since the machine started."""
    counters = Path("/proc/net/dev")
    lines = counters.read_text().splitlines() if counters.is_file() else []
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), None)


class Simulator:
    """Makes data and runs jobs on it.

    Args:
        folder: scratch folder.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._home = folder / "home"
        self._home.mkdir()

    def write_data(self, name: str, sites: int, images: int) -> Path:
        """Draws synthetic sites; returns the data root."""
        say(f"drawing {sites} sites")
        root = self._folder / name
        options = ("--sites", sites, "--images", images, "--size", SIZE)
        run_module("app_fedsm.cli.main", "data", "synth", root, *options)
        return root

    def run(self, data: Path, name: str, rounds: int, *options: str | int) -> Simulation:
        """Runs a job to its end.

        Raises:
            Failed: it did not get there.
        """
        out = self._folder / name
        say(f"simulator: {rounds} rounds {' '.join(map(str, options))}")
        before = loopback_bytes()
        command = ("run", "--task", TASK, "--data", data, "--size", SIZE, "--rounds", rounds, "--out", out, *options)
        run_module("app_fedsm.cli.main", *command, home=self._home)
        after = loopback_bytes()
        crossed = None if before is None or after is None else after - before
        log = (out / "flare.log").read_text(errors="replace")
        return Simulation(json.loads((out / "results.json").read_text()), crossed, log)

    @cached_property
    def data(self) -> Path:
        """The data of `default_run`."""
        return self.write_data("data", SITES, IMAGES)

    @cached_property
    def default_run(self) -> Simulation:
        """Six sites at 64 px, all at the same time, the default U-Net and selector."""
        return self.run(self.data, "default", ROUNDS, "--threads", SITES, "--selector", "statistics")
