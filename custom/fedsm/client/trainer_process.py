"""A site's trainer in a process of its own: `python -m fedsm.client.trainer_process FD`, started by `trainer_link`.

It does not use FLARE. Tasks and answers are frames over the socket FD. The parent controls it through standard input:
a line with a task's number stops that task at the next batch, and when the input closes because the parent is gone,
this process ends. Standard output and error become lines of the site's log.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any

from fedsm.client import frames
from fedsm.client.failures import explain
from fedsm.client.gpu_failures import GpuFailure
from fedsm.client.site_settings import SiteLocation
from fedsm.client.work import Aborted
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.private_files import keep_private
from fedsm.core.tensors import Tensors


class _StopRequests:
    """Reads the parent's requests to stop from standard input, in a thread."""

    def __init__(self) -> None:
        self.latest = 0  # the number of the task to stop; earlier ones stop too
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        # Not through sys.stdin: a thread that waits in its buffer holds a lock that the interpreter needs to exit.
        while line := os.read(0, 1024):
            self.latest = int(line.split()[-1])
        os._exit(0)


def main() -> None:
    """Does tasks until the parent is gone, or until a failure after which memory or GPU may be in a bad state."""
    try:
        code = _serve()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # no normal exit: nothing is left to clean up, and a process without memory may hang in it


def _serve() -> int:
    keep_private()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles a Ctrl-C at the terminal
    faulthandler.enable()  # a segmentation fault leaves the Python stack in the log
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stops = _StopRequests()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        location = SiteLocation(**frames.receive(sock)[0])
        trainer = None
        while True:
            try:
                request, payload = frames.receive(sock)
            except EOFError:
                return 0
            sound = True
            tracks: dict[str, Tensors] = {}
            reply: dict[str, Any] = {}
            try:
                trainer = trainer or build_worker(location, request["task"], request["meta"])
                number = request["number"]
                answer = trainer.do(request["task"], request["meta"], payload, lambda n=number: stops.latest >= n)  # type: ignore[misc]
                reply = {"meta": answer.meta, "sums": answer.sums}
                tracks = {name: dict(tensors) for name, tensors in answer.tracks.items()}
                del answer
            except Aborted:
                reply = {"aborted": True}
            except Exception as e:
                failure, sound = explain(e), isinstance(e, UserError) and not isinstance(e, GpuFailure)
                reply = {"failure": str(failure), "public": failure.public, "sound": sound}
            del payload
            frames.send(sock, reply, tracks)
            if not sound:
                return 1


if __name__ == "__main__":
    main()
