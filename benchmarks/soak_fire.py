"""What gets a `kill -9` in the soak: the server, a site, a site's job process, or its trainer."""

from __future__ import annotations

import contextlib
import random
import time

import psutil

from app_fedsm.federation.poc import SERVER, Poc
from benchmarks.process import say
from fedsm.core.errors import UserError

VICTIMS = ("server", "site", "job process", "trainer")
_JOB, _TRAINER = "worker_process", "trainer_process"


class Fire:
    """Kills processes of a POC, and starts again what an init system would.

    Args:
        poc: the federation.
        rng: chooses the victims.
    """

    def __init__(self, poc: Poc, rng: random.Random):
        self._poc = poc
        self._rng = rng
        self.struck: list[str] = []
        self.missed = 0  # blows at something that was not there at the moment

    def strike(self) -> str:
        """Kills one of them; returns what was done, in words. Each kind has its turn before one has its second."""
        least = min(self.struck.count(kind) for kind in VICTIMS)
        kind = self._rng.choice([kind for kind in VICTIMS if self.struck.count(kind) == least])
        site = SERVER if kind == "server" else self._rng.choice(self._poc.note["sites"])
        victims = self._victims(kind, site)
        if not victims:
            self.missed += 1
            return f"no {kind} of {site} to kill"
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(victims, timeout=10)
        self.struck.append(kind)
        if kind in ("server", "site"):
            self._start_again()
        return f"killed {kind} of {site} ({len(victims)} processes)"

    def _victims(self, kind: str, site: str) -> list[psutil.Process]:
        folder = str(self._poc.kits / site)
        ours = [p for p in self._poc.processes() if any(folder in part for part in _command(p))]
        if kind in ("server", "site"):  # FLARE's watching shell first, or it would start the other one again
            return sorted(ours, key=lambda process: process.create_time())
        jobs = [p for p in ours if _JOB in " ".join(_command(p))]
        if kind == "job process":
            return jobs
        return [c for job in jobs for c in job.children(recursive=True) if _TRAINER in " ".join(_command(c))]

    def _start_again(self) -> None:
        for _ in range(5):
            try:
                self._poc.start()
                return
            except UserError as e:
                say(f"starting again: {e}")
                time.sleep(5)


def memory_of(poc: Poc) -> dict[str, int]:
    """Role -> resident bytes of all processes of that role now."""
    found: dict[str, int] = {}
    for process in poc.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            side = "server" if f"/{SERVER}" in words else "sites"
            job = _JOB in words or "runner_process" in words or _TRAINER in words
            role = f"{side}' jobs" if job and side == "sites" else f"{side}'s job" if job else side
            found[role] = found.get(role, 0) + process.memory_info().rss
    return found


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
