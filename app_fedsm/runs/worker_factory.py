"""The workers of FLARE's simulator, forked from a process that has loaded everything already.

FLARE 2.9 starts an interpreter for each site, and with fewer threads than sites one for each task. Each loads torch,
MONAI and FLARE again: 4 s of a processor and 350 MB. A fork takes milliseconds, and what was loaded is in memory once.

The process that forks has never had a second thread and never used CUDA: it was forked itself before anything began.
If CUDA was asked for its devices before that, FLARE starts its workers itself.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.private.fed.app.simulator import simulator_worker

_WORKER = ["-m", simulator_worker.__name__]  # how FLARE starts one, after the name of the interpreter
_LOOK = 0.05  # seconds between looks at a worker that is to end
_START, _POLL = "start", "poll"


class Order(NamedTuple):
    """What a forked process is to do: the work of a simulator's worker."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str

    def run(self) -> int:
        """Does it; what FLARE has in the worker's own file for a process of its own."""
        os.setsid()
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        added = [path for path in self.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.path[1:1] = [path for path in added if path not in sys.path]
        # FLARE draws the first number of a process's streams when it is loaded: no two processes may have the same.
        stream_utils.sid_base = secrets.randbits(52)
        sys.argv = [simulator_worker.__file__, *self.arguments]
        args = simulator_worker.parse_arguments()
        MainProcessMonitor.run(main_func=simulator_worker.main, run_dir=args.workspace, args=args)
        return 0


class WorkerFactory:
    """Stands for the module `subprocess` in FLARE's simulator.

    Args:
        connection: to the process that forks.
    """

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, connection: Connection):
        self._connection = connection
        self._lock = threading.Lock()

    def Popen(self, command: list[str], **options: Any) -> ForkedWorker | subprocess.Popen:  # noqa: N802
        """Starts a worker; whatever else FLARE may want to start is started as it says."""
        if command[1:3] != _WORKER:
            return subprocess.Popen(command, **options)
        order = Order(command[3:], dict(options.get("env") or os.environ), os.getcwd())
        return ForkedWorker(self, self.ask(_START, order))

    def ask(self, what: str, value: object) -> Any:
        """The answer of the process that forks.

        Raises:
            EOFError: it is gone.
        """
        with self._lock:
            self._connection.send((what, value))
            return self._connection.recv()


class ForkedWorker:
    """A worker, with what FLARE's simulator uses of `subprocess.Popen`."""

    def __init__(self, factory: WorkerFactory, pid: int):
        self._factory = factory
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None:
            self.returncode = self._factory.ask(_POLL, self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(_WORKER, timeout or 0)
            time.sleep(_LOOK)
        return code

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:  # its id is its own until its end was seen
            os.kill(self.pid, number)


def start() -> WorkerFactory | Order | None:
    """Forks the process that forks. To be called before any thread is started.

    Returns:
        in this process what stands for `subprocess`, or None where a forked process could not use a GPU; in each
        worker, later, what it is to do.
    """
    ours, theirs = multiprocessing.Pipe()
    if os.fork():
        theirs.close()
        return WorkerFactory(ours) if ours.recv() else None
    ours.close()
    usable = not torch.cuda._is_in_bad_fork()  # true where something asked for CUDA's devices while it was loaded
    theirs.send(usable)
    if usable and (order := _serve(theirs)):
        return order
    os._exit(0)


def _serve(connection: Connection) -> Order | None:
    """Forks workers until nobody asks any more; returns in each of them."""
    gc.collect()
    gc.freeze()  # else a worker's first collection would copy what all of them share
    while True:
        try:
            what, value = connection.recv()
        except (EOFError, OSError):
            return None
        if what == _START:
            if pid := os.fork():
                connection.send(pid)
                continue
            connection.close()
            return Order(*value)
        pid, status = os.waitpid(value, os.WNOHANG)
        connection.send(os.waitstatus_to_exitcode(status) if pid else None)
