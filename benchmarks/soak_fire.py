"""What gets a `kill -9` in the soak: the server, a site, the process of the job of either, or a trainer."""

from __future__ import annotations

import contextlib
import random
import time

import psutil

from app_fedsm.federation.poc import SERVER, Poc
from benchmarks.process import say

VICTIMS = ("server", "server's job", "site", "site's job", "trainer")
JOB, SERVER_JOB, TRAINER = "worker_process", "runner_process", "trainer_process"  # in command lines
_TIMES = 10  # that what is started meanwhile by FLARE's watching shells is looked for
_TRIES = 5  # to start again


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
        of_server = kind in ("server", "server's job")
        who = SERVER if of_server else self._rng.choice(self._poc.note["sites"])
        whole = kind in ("server", "site")
        killed = 0
        for _ in range(_TIMES if whole else 1):
            if not (victims := self._victims(kind, who)):
                break
            for process in victims:  # FLARE's watching shell first, or it would start the other one again
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(victims, timeout=10)
            killed += len(victims)
        if not killed:
            self.missed += 1
            return f"no {kind} of {who} to kill"
        self.struck.append(kind)
        if whole:
            self._start_again()
        return f"killed {kind} of {who} ({killed} processes)"

    def _victims(self, kind: str, who: str) -> list[psutil.Process]:
        folder = f"{self._poc.kits / who}"
        ours = [p for p in self._poc.processes() if folder in command_of(p)]
        if kind in ("server", "site"):
            return sorted(ours, key=lambda process: process.create_time())
        jobs = [p for p in ours if (SERVER_JOB if kind == "server's job" else JOB) in command_of(p)]
        if kind != "trainer":
            return jobs
        with contextlib.suppress(psutil.NoSuchProcess):
            return [c for job in jobs for c in job.children(recursive=True) if TRAINER in command_of(c)]
        return []

    def _start_again(self) -> None:
        for _ in range(_TRIES):
            try:
                self._poc.start()
                return
            except Exception as e:  # a server that is just starting may answer with any of FLARE's errors
                say(f"starting again: {type(e).__name__}: {e}")
                time.sleep(5)


def command_of(process: psutil.Process) -> str:
    """A process's command line; empty when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
