"""Starts the simulator's workers as forks of one process that has loaded everything, instead of as new Pythons.

    simulator --(socket: command, environment, a pipe's end)--> fork server --fork--> worker, which runs the command
                                                     <--(process id)--

The fork server has no threads of Python's own, opens no connection and computes nothing, so a fork of it is as good as
a new process, but for one thing: FLARE draws the number of a process's first stream when it is loaded, and a server
takes a second stream of the same number and site for the first one, and waits for ever. So each fork draws its own. A
worker holds its end of the pipe for as long as it lives: that is how the simulator sees it end. The fork server itself
ends when the simulator closes the socket, or dies.

Only on Linux, and only where there is no NVIDIA driver: what CUDA has loaded does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvflare.fuel.f3.streaming import stream_utils

LOADED = (
    "nvflare.private.fed.app.simulator.simulator_worker", "fedsm.flare.executor", "fedsm.client.workers",
    "torch._dynamo",  # which the first optimizer of a process loads
)  # fmt: skip
_MOST_BYTES = 1024 * 1024  # of a command with its environment
_DRIVER = Path("/dev/nvidiactl")


def can_fork() -> bool:
    """Whether workers may be forks on this machine."""
    return sys.platform == "linux" and not _DRIVER.exists()


class Forked:
    """A forked worker: what FLARE's simulator uses of `subprocess.Popen`.

    `returncode` is None while it lives, and 1 afterwards: how it ended only its parent would know.
    """

    def __init__(self, command: Sequence[str], pid: int, end: int):
        self.pid, self.returncode = pid, None if pid else 1
        self._command, self._end = list(command), end

    def poll(self) -> int | None:
        """`returncode`, after a look."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, in so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._command, timeout or 0)
            os.close(self._end)
            self.returncode = 1
        return self.returncode

    def terminate(self) -> None:
        """Asks it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The simulator's side of it. The process is started with the first worker.

    Args:
        environment: of the process.
        workspace: the simulator's; it stands in the command line, which the workers share, so that they can be found.
        loaded: the modules that it loads.
    """

    def __init__(self, environment: Mapping[str, str], workspace: Path, loaded: Sequence[str] = LOADED):
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(workspace), *loaded]
            self.process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Forked:
        """Starts `python -m MODULE WORDS` as a fork.

        Raises:
            OSError: the fork server has ended.
        """
        ours, theirs = os.pipe()
        try:
            asked = json.dumps({"command": list(command), "environment": dict(environment)}).encode()
            with self._lock:
                socket.send_fds(self._socket, [asked], [theirs])
                pid = self._socket.recv(64)
            if not pid:
                raise OSError("the fork server has ended")
            return Forked(command, int(pid), ours)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)


def serve(requests: socket.socket) -> None:
    """Forks until the other side closes. Returns in the forks never, in the fork server at the end."""
    while True:
        asked, ends, *_ = socket.recv_fds(requests, _MOST_BYTES, 1)
        if not asked:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _work(**json.loads(asked))
        os.close(ends[0])
        requests.send(str(pid).encode())


def _work(command: list[str], environment: dict[str, str]) -> None:
    """Becomes the worker: `python -m MODULE WORDS`."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        stream_utils.sid_base = secrets.randbits(52)
        os.environ.clear()
        os.environ.update(environment)
        _, _, module, *words = command
        sys.argv = [module, *words]
        sys.modules.pop(module, None)  # it runs as __main__
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """The fork server: its stdin is the socket."""
    requests = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # the workers' stdin
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if threading.active_count() == 1:
        gc.collect()
        gc.freeze()  # so that the workers share the memory of what is loaded
        serve(requests)


if __name__ == "__main__":
    main()
