"""Kills trainers and the server of a run in the simulator with a real `kill -9`, at the rounds of the plan."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from pathlib import Path

import psutil
from tqdm import tqdm

from app_fedsm.runs.run_folder import rounds_done, server_folder
from benchmarks.chaos_plan import Plan
from benchmarks.chaos_replay import KILLED
from fedsm.server.checkpoint import FOLDER, Checkpoints

_TRAINER = "fedsm.client.trainer_process"
_WORKS = 0.05  # seconds of processor time in a round from which a trainer is at work and not waiting for its task
_LOOK = 0.01
_SERVER_WAIT = 1.0  # the server dies at a random moment of so many first seconds of its round


class Killer:
    """A thread that follows a run's checkpoints and kills child processes of the process that runs it (this one).

    A blow that finds a trainer idle costs the site nothing: it is repeated in a later round.

    Args:
        out: the run's folder.
        plan: the accidents.
        rounds: of the run.
        seed: of the moment at which the server dies.
    """

    def __init__(self, out: Path, plan: Plan, rounds: int, seed: int):
        self._out, self._plan, self._rounds = out, plan, rounds
        self._moment = random.Random(seed).uniform(0, _SERVER_WAIT)
        self._todo = dict(plan.trainers)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.trainers: list[tuple[int, str]] = []  # (round, site) of those whose death cost the round
        self.missed: list[tuple[int, str]] = []
        self.advanced: set[tuple[int, str]] = set()  # of those, whose state of the round was on disk already
        self.server: int | None = None  # the last whole round when the server was killed

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._done.wait(_LOOK):
            number = rounds_done(self._out) + 1
            if number in self._todo:
                self._strike_trainer(number, self._todo.pop(number))
            elif number >= self._plan.server and self.server is None:
                self._kill_server()
            for late in [n for n in self._todo if n <= rounds_done(self._out)]:
                self._postpone(late, self._todo.pop(late))

    def _strike_trainer(self, number: int, site: str) -> None:
        if self._kill_trainer(number, site) and self._cost_the_round(number, site):
            self.trainers.append((number, site))
        else:
            self._postpone(number, site)

    def _postpone(self, number: int, site: str) -> None:
        self.missed.append((number, site))
        self.advanced.discard((number, site))
        later = self._plan.later(site, rounds_done(self._out), self._rounds, self._todo)
        if later:
            self._todo[later] = site

    def _kill_trainer(self, number: int, site: str) -> bool:
        """Waits until the site's trainer works on the round, and kills it."""
        victim, before = _trainer_of(site), None
        while victim and not self._done.wait(_LOOK) and rounds_done(self._out) < number:
            try:
                spent = victim.cpu_times().user
                before = spent if before is None else before
                if spent - before >= _WORKS:
                    victim.kill()
                    victim.wait(10)
                    tqdm.write(f"round {number}: killed the trainer of {site} (process {victim.pid})", sys.stderr)
                    if list((self._out / "site_state" / site).glob(f"*/round_{number:06d}.safetensors")):
                        self.advanced.add((number, site))
                    return True
            except psutil.NoSuchProcess:
                return False
        return False

    def _cost_the_round(self, number: int, site: str) -> bool:
        """Whether the server misses the site because of the kill; waits for the end of the round."""
        while rounds_done(self._out) < number:
            if self._done.wait(_LOOK):
                return False
        history = self._checkpoint()["record"]["history"]
        return KILLED in history[number - 1]["missing"].get(site, "")

    def _checkpoint(self) -> dict:
        """The newest checkpoint; it may be moved or pruned while it is read."""
        while True:
            with contextlib.suppress(OSError, ValueError):
                for folder in (server_folder(self._out), self._out):
                    if state := Checkpoints(folder / FOLDER).load():
                        return state
            time.sleep(_LOOK)

    def _kill_server(self) -> None:
        """Kills the simulator, which is the server, and every process below it, without a chance to clean up."""
        time.sleep(self._moment)
        last = rounds_done(self._out)
        victims = _simulator(self._out)
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if victims:
            self.server = last
            tqdm.write(f"round {last + 1}: killed the server, {len(victims)} processes in all", sys.stderr)


def _simulator(out: Path) -> list[psutil.Process]:
    """The simulator of a run, the server first, and all below it."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(out / "workspace") in child.cmdline():
                return [child, *child.children(recursive=True)]
    return []


def _trainer_of(site: str) -> psutil.Process | None:
    """The living trainer of a site; the simulator's worker above it, a fork, writes the log in the site's folder."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if _TRAINER in process.cmdline() and any(
                site in Path(file.path).parts for file in process.parent().open_files()
            ):
                return process
    return None
