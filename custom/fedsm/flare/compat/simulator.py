"""Many sites in FLARE's simulator, with fewer threads than sites.

FLARE 2.9 gives every site a new process for every task then: a Python that loads FLARE, torch and MONAI, five seconds
for work that may take one. It starts one for the next site in turn, whether there is a task for it or not: the process
asks three times and ends, so a round in which a quarter of the sites is asked costs as many processes as one with all.
And between two processes it sleeps for two seconds.

With as many threads as sites nothing is changed: each site has one process for the whole run.

Here a worker is a fork of a process that has loaded all that (`fork_server.py`), it is started for a site that has a
task, and the pauses are short. What a worker does, and in which order sites are asked, is FLARE's.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsm.flare.compat.fork_server import Forked, ForkServer, can_fork

_RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"
_WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
_LONGEST_PAUSE = 0.05  # seconds
_NO_TASK = 2.0  # seconds without a task for any site, until a worker is started all the same: it hears of the job's end


class Waiting:
    """The sites that have a task and have not answered it."""

    def __init__(self) -> None:
        self._sites: set[str] = set()
        self._changed = threading.Condition()
        self.used = False

    def open(self, sites: Iterable[str]) -> None:
        """A task was given to these sites."""
        with self._changed:
            self._sites, self.used = set(sites), True
            self._changed.notify_all()

    def answered(self, site: str) -> None:
        """A site has answered."""
        with self._changed:
            self._sites.discard(site)

    def close(self) -> None:
        """The task is over."""
        self.open(())

    def any_of(self, free: Iterable[str], patience: float) -> set[str]:
        """Those of these sites that wait; empty where none does within some seconds."""
        free = set(free)
        with self._changed:
            self._changed.wait_for(lambda: self._sites & free, patience)
            return self._sites & free


WAITING = Waiting()  # of this process: a simulator runs one job


def hurry() -> None:
    """Changes the simulator, if this is its process. FLARE's settings of it stay what they are."""
    runner: Any = sys.modules.get(_RUNNER)
    if runner is None or getattr(runner, "fedsm_hurried", False):
        return
    chosen = runner.SimulatorClientRunner.get_next_run_client
    pauses, processes = _Pauses(), _Processes()

    def next_client(self: Any, gpu: str | None) -> Any:
        """What a thread asks first, before its first pause and process."""
        fewer = self.args.threads < len(self.federated_clients)
        pauses.short, processes.forks = fewer, fewer and can_fork()
        if fewer and WAITING.used:
            free = [client for client in self.federated_clients if not client.simulate_running]
            waiting = WAITING.any_of((client.client_name for client in free), _NO_TASK)
            count = len(self.federated_clients)
            for step in range(1, count + 1) if waiting else ():
                place = (self.run_client_index + step) % count
                client = self.federated_clients[place]
                if client.client_name in waiting and not client.simulate_running:
                    self.run_client_index = place
                    return client
        return chosen(self, gpu)

    runner.SimulatorClientRunner.get_next_run_client = next_client
    runner.time, runner.subprocess = pauses, processes
    runner.fedsm_hurried = True


class _Pauses(ModuleType):
    """The module `time`, with short pauses between two looks if `short`."""

    def __init__(self) -> None:
        super().__init__("time")
        self.short = False

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """At most a short pause."""
        time.sleep(min(seconds, _LONGEST_PAUSE) if self.short else seconds)


class _Processes(ModuleType):
    """The module `subprocess`, in which the simulator's workers are forks if `forks`."""

    def __init__(self) -> None:
        super().__init__("subprocess")
        self.forks = False
        self._lock = threading.Lock()
        self._server: ForkServer | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: list[str], **options: Any) -> subprocess.Popen | Forked:  # noqa: N802
        """As `subprocess.Popen`. Jobs that bring code of their own get new processes: each may have other code."""
        environment = options.get("env")
        if self.forks and command[1:3] == ["-m", _WORKER] and environment and not _brings_code(command):
            try:
                with self._lock:
                    self._server = self._server or ForkServer(environment, _site_folder(command).parent)
                return self._server.start(command, environment)
            except (OSError, ValueError):
                pass  # as without us
        return subprocess.Popen(command, **options)


def _brings_code(command: list[str]) -> bool:
    """Whether the job has Python code for this worker's site: in FLARE's place for it, below the site's workspace."""
    return any(_site_folder(command).glob("*/app_*/custom/**/*.py"))


def _site_folder(command: list[str]) -> Path:
    """The site's folder in the simulator's workspace, from a worker's command."""
    return Path(command[command.index("-o") + 1])
