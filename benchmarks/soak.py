"""A supervised federation of real processes under fire, for a set time: `python -m benchmarks.soak --minutes 120`.

A POC of synthetic sites runs one job after the other, each submitted with `--supervise`. Every few minutes something
gets a `kill -9` at a random moment: the server, its process of the job, a site, a site's process of the job, or the
trainer. What was killed is started again, as an init system would do it; nobody resumes a job. When the time is up,
nothing is killed any more and the last job ends. Exit codes: 0 every bar is held, 1 one is not, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from app_fedsm.federation.poc import Poc
from benchmarks.chaos_replay import accepted_updates, log_errors
from benchmarks.process import Failed, say
from benchmarks.report import Check, Outcome, save, table
from benchmarks.soak_fire import VICTIMS, Fire
from benchmarks.soak_watch import Watch, kept_rounds, kept_states
from fedsm.core.errors import UserError
from fedsm.data.synthetic import write_sites

SITES, IMAGES, SIZE, ROUNDS = 3, 24, 48, 60
_JOB = ["--task", "retinal", "--rounds", ROUNDS, "--size", SIZE, "--batch-size", 4, "--local-epochs", 2, "--lr", "2e-3",
        "--set", "task.unet.channels=[8,16,32]", "--set", "task.unet.residual_units=1", "--round-timeout", 300,
        "--supervise", 1000]  # fmt: skip
_KEPT = 4  # rounds that stay at the server and at a site: see `fedsm.core.rounds`
_LAST_JOB = 3600.0  # seconds in which the last job must end, when nothing is killed any more
_PAUSE = 10.0  # seconds after a job that did not end well, or a blow at nothing
_LOOK = 1.0
GROWTH_BAR = 1.25  # memory in the last third of the time over that in the first


class Soak:
    """The federation, its jobs and what was seen of them.

    Args:
        folder: scratch folder; runs stay in it.
        seed: of the accidents.
        every: mean seconds between two of them.
    """

    def __init__(self, folder: Path, seed: int, every: float):
        self._folder = folder
        self._rng = random.Random(seed)
        self._every = every
        self.poc = Poc(folder / "poc")
        self.fire = Fire(self.poc, self._rng)
        self.watch = Watch(self.poc, folder / "samples.jsonl")
        self.runs: list[Path] = []
        self.codes: list[int] = []

    def start(self) -> None:
        """Makes the sites and starts all processes."""
        root = self._folder / "data"
        sites = write_sites(root, SITES, 0, IMAGES, SIZE)
        self.poc.prepare(root, sites, _free_port(), "cpu")
        self.poc.start()

    def play(self, seconds: float) -> None:
        """Runs jobs and kills until the time is up, then waits for the last job."""
        end = time.monotonic() + seconds
        strike = self._next_strike()
        while time.monotonic() < end:
            out = self._folder / f"run-{len(self.runs) + 1}"
            _tell(f"job {len(self.runs) + 1}; {(end - time.monotonic()) / 60:.0f} minutes left")
            with (self._folder / f"{out.name}.log").open("w") as log:
                process = subprocess.Popen(_submit(self.poc, out), stdout=log, stderr=log)
            self.runs.append(out)
            while process.poll() is None:
                time.sleep(_LOOK)
                now = time.monotonic()
                if strike < now < end and (out / "run.json").is_file():  # submitting needs a server: that is no fault
                    missed = self.fire.missed
                    _tell(self.fire.strike())
                    strike = now + _PAUSE if self.fire.missed > missed else self._next_strike()
                if now > end + _LAST_JOB:
                    process.kill()
                self.watch.look(len(self.runs))
            self.codes.append(process.wait())
            _tell(f"job {len(self.runs)} ended with code {self.codes[-1]}")
            if self.codes[-1]:
                time.sleep(_PAUSE)

    def _next_strike(self) -> float:
        return time.monotonic() + self._rng.uniform(0.5, 1.5) * self._every

    def outcome(self) -> Outcome:
        """What was seen, against the bars."""
        failed = [run.name for run, code in zip(self.runs, self.codes, strict=True) if code]
        errors = [error for run in self.runs if run.name not in failed for error in _errors(run)]
        for error in errors:
            say(error)
        kept = kept_rounds(self.poc)
        struck = Counter(self.fire.struck)
        checks = [
            Check("jobs that did not end well", len(failed), 0),
            Check("accepted updates that are lost or stand twice, rounds that are missing", len(errors), 0),
            Check("server's memory, last third over first", self.watch.growth("server"), GROWTH_BAR),
            Check("sites' memory, last third over first", self.watch.growth("sites"), GROWTH_BAR),
            Check("folders of checkpoints on the server, for each run", len(kept) / max(1, len(self.runs)), 1),
            Check("rounds in one of them", max(kept.values(), default=0), _KEPT),
            Check("rounds of a run in a site's state", kept_states(self.poc), _KEPT),
            Check("kinds of victims that were never struck", len(set(VICTIMS) - set(struck)), 0),
        ]
        figures = {
            "jobs": len(self.runs), "failed": failed, "struck": dict(struck), "missed": self.fire.missed,
            "went_on": sum(_told(self._folder / f"{run.name}.log") for run in self.runs),
        }  # fmt: skip
        return Outcome(checks, figures | self.watch.figures())


def _errors(run: Path) -> list[str]:
    """Where a run's log of accepted updates, its history and its number of rounds disagree."""
    results = json.loads((run / "results.json").read_text())
    rounds = [row["round"] for row in results["validation"]["history"]]
    wrong = [] if rounds == list(range(1, ROUNDS + 1)) else [f"{run.name}: rounds {rounds}"]
    return wrong + [f"{run.name}: {error}" for error in log_errors(accepted_updates(run), results)]


def _told(log: Path) -> int:
    return sum(log.read_text().count(f" {how} ") for how in ("goes on from the last checkpoint", "starts from the"))


def _tell(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {text}")


def _submit(poc: Poc, out: Path) -> list[str]:
    command = [sys.executable, "-m", "app_fedsm.cli.main", "poc", "submit", "--dir", poc.folder, *_JOB, "--out", out]
    return [str(word) for word in command]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), metavar="DIR", help="default: runs/soak")
    parser.add_argument("--minutes", type=float, default=120, metavar="M", help="default: 120")
    parser.add_argument(
        "--every", type=float, default=180, metavar="S", help="mean seconds between kills (default: 180)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the accidents (default: 0)")
    args = parser.parse_args(argv)
    folder = args.out.resolve()
    if (folder / "poc").exists():
        parser.error(f"{args.out} holds an earlier soak: remove it, or choose another --out")
    (folder / "home").mkdir(parents=True, exist_ok=True)
    os.environ |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}  # FLARE leaves files in the home folder
    soak = Soak(folder, args.seed, args.every)
    try:
        soak.start()
        soak.play(args.minutes * 60)
        outcome = soak.outcome()
    except (Failed, UserError) as e:
        outcome = Outcome(error=str(e))
    finally:
        soak.poc.stop()
    save(folder / "report.json", {"soak": outcome})
    print("\n" + table({"soak": outcome}) + f"\n\n{json.dumps(outcome.figures, indent=1)}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
