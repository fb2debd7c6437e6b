"""The parent's end of a trainer in a process of its own.

A fresh interpreter, never a fork: FLARE's process has threads, gRPC and perhaps CUDA, none of which survive one. It
lives across tasks, with its data and CUDA context. When it dies the task is answered with the reason, and the next task
starts a new one, which goes on from the site's state on disk.

Written by hand: `multiprocessing` and its pools send pickles, import the parent's main module (FLARE's) again, and give
up the whole pool when one process dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from fedsm.client import frames
from fedsm.client.failures import OUT_OF_MEMORY, speaks_of_memory
from fedsm.client.site_settings import SiteLocation
from fedsm.client.work import Aborted, Answer
from fedsm.core.errors import UserError
from fedsm.core.task_names import OF_ALL_MODELS
from fedsm.core.tensors import Tensors

COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "fedsm.client.trainer_process",
)  # -P: nothing is imported from the working folder
GRACE = 15  # seconds in which a trainer may stop by itself
_LOOK = 0.2  # seconds between looks at the abort signal
_LAST_WORDS = 30  # seconds that a failed process has to write its reason
_LAST_LINES = 20

log = logging.getLogger(__name__)


class TrainerLink:
    """Does a site's tasks as `SiteTrainer` does, in another process.

    Args:
        location: where the site's settings are.
        command: what to start; a file descriptor is added to it.
    """

    def __init__(self, location: SiteLocation, command: tuple[str, ...] = COMMAND):
        self._location = location
        self._command = command
        self._child: _Child | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process that did the last task or does one now; None: none was started yet."""
        return self._child.pid if self._child else None

    def do(self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool]) -> Answer:
        """Does one task; see `SiteTrainer.do`.

        A task is given up at the server's deadline for it: FLARE asks for the next one only then.

        Raises:
            Aborted: the job was stopped.
            UserError: as the trainer raised it; or the trainer died, with the reason.
        """
        settings = meta["settings"]
        seconds = settings["evaluate_timeout" if task in OF_ALL_MODELS else "round_timeout"]
        return self._free_child().ask(task, meta, payload, aborted, seconds)

    def close(self) -> None:
        """Ends the process, also while it works."""
        with self._lock:
            if self._child:
                self._child.end()
            self._child = None

    def _free_child(self) -> _Child:
        """The running process, or a new one. A process that still works on an older task is ended and replaced."""
        with self._lock:
            child = self._child
            if child is None or child.busy or not child.alive():
                if child:
                    child.end()
                child = self._child = _Child(self._command, self._location)
            child.busy = True
            return child


class _Child:
    """One process, from its start to its end."""

    def __init__(self, command: tuple[str, ...], location: SiteLocation):
        self.busy = False
        self._site = location.site
        self._number = 0
        self._sock, theirs = socket.socketpair()
        # The child gets this process's path: code that came with a job (BYOC) is found only there.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._sock.settimeout(_LOOK)
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        # The thread holds the stream, not this object: so an unused object can be collected, and its process ends.
        self._reader = threading.Thread(
            target=_follow, args=(self._process.stdout, self._lines, self._site), daemon=True
        )
        self._reader.start()
        self._oom_kills = oom_kills()
        self._hello = location._asdict()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, task: str, meta: dict, payload: dict[str, Tensors], aborted: Callable[[], bool], seconds: float
    ) -> Answer:
        """Hands over a task and waits for its answer."""
        self._number += 1
        deadline = time.monotonic() + seconds
        kill_at: float | None = None

        def waiting() -> None:
            nonlocal kill_at
            now = time.monotonic()
            if kill_at is None and aborted():
                kill_at = now + GRACE
                self._stop()
            if kill_at is not None and now > kill_at:
                raise Aborted
            if now > deadline:
                message = f"the trainer was not done within the {seconds:g} s that the server waits, and was ended"
                raise UserError(message, site=self._site, public=message)

        try:
            if self._number == 1:
                frames.send(self._sock, self._hello, {}, waiting)
            frames.send(self._sock, {"task": task, "number": self._number, "meta": meta}, payload, waiting)
            reply, tracks = frames.receive(self._sock, waiting)
        except (EOFError, OSError):
            raise self._death(task, meta["round"]) from None
        except BaseException:
            self.end()
            raise
        self.busy = False
        if "failure" in reply:
            if not reply["sound"]:
                self.end()
            raise UserError(reply["failure"], public=reply["public"])
        if "aborted" in reply:
            raise Aborted
        return Answer(tracks, reply["meta"], reply["sums"])

    def _stop(self) -> None:
        """Asks the process to stop at the next batch."""
        with contextlib.suppress(OSError):  # gone already: the socket will say so
            assert self._process.stdin
            os.write(self._process.stdin.fileno(), f"{self._number}\n".encode())

    def end(self) -> None:
        """Ends the process. It exits when its standard input closes; if it hangs in a library, it is killed."""
        self._sock.close()
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)

    def _death(self, task: str, number: int) -> UserError:
        """Why the process is gone: in full for the site's log, without its last lines for the server."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)  # before its standard input ends, which would cut it short
        self.end()
        code = self._process.returncode
        cause = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            cause += ": out of memory" if oom_kills() > self._oom_kills else ", as the kernel does when memory runs out"
        if any(map(speaks_of_memory, self._lines)):
            cause += f"; {OUT_OF_MEMORY}"
        public = f"the trainer process {cause} ({task} of round {number}); the next task starts a new one"
        lines = " | ".join(line[:200] for line in self._lines) or "none"
        return UserError(f"{public} (its last lines: {lines})", site=self._site, public=public)


def _follow(stream: IO[bytes], lines: deque[str], site: str) -> None:
    """Writes what the process says to the site's log. Never as an error: kits stream those to the server."""
    with stream:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            if line:
                lines.append(line)
                log.log(logging.INFO if line.startswith("INFO ") else logging.WARNING, "trainer of %r: %s", site, line)


def oom_kills(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int:
    """How many processes of this control group (version 2) the kernel killed for lack of memory; 0 if unknown."""
    try:
        with open(membership) as f:
            group = next(line.strip().partition("::")[2] for line in f if line.startswith("0::"))
        with open(f"{root}{group.rstrip('/')}/memory.events") as f:
            return int(dict(line.split() for line in f)["oom_kill"])
    except (OSError, StopIteration, KeyError, ValueError):
        return 0
