"""The simulator's process, and all that it starts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil

MODULE = "app_fedsm.runs.flare_simulator"
_LOOK = 1.0  # seconds between two looks at which processes there are: each reads about all of the machine's


class SimulatorProcess:
    """The simulator and all processes that it started, collected while it lives: orphans could not be found later.

    It is started here, loads its libraries, and waits for `begin`.

    Args:
        arguments: as `nvflare simulator` takes them.
        log: the file to which it writes.

    Attributes:
        log_start: where its part of the log begins.
    """

    def __init__(self, arguments: list[str], log: Path):
        with log.open("ab") as stream:
            self.log_start = stream.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *arguments],
                stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        self._members: dict[int, psutil.Process] = {}
        self._looked = 0.0

    def begin(self) -> None:
        """Lets it begin: job and workspace are ready."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:  # it ended: `look` says so
            stream.write(b"begin\n")

    def look(self) -> bool:
        """Adds new processes; False when the simulator has ended. To be called often."""
        if time.monotonic() > self._looked + _LOOK:
            self._collect()
        return self._process.poll() is None

    def _collect(self) -> None:
        self._looked = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            self._members |= {p.pid: p for p in [parent, *parent.children(recursive=True)]}

    def stop(self) -> None:
        """Ends them all. The simulator's workers lead sessions of their own: a process group would miss them."""
        self._collect()
        end_processes(list(self._members.values()))
        self._process.wait()


def end_processes(processes: list[psutil.Process]) -> None:
    """Ends processes: asks, waits, kills."""
    alive = [p for p in processes if p.is_running()]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(member)
        _, alive = psutil.wait_procs(alive, timeout=5)
