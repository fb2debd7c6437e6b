"""A site that asks for work is answered when there is some.

FLARE 2.9 answers at once that there is none, and the site asks again after `task_request_interval`; in the simulator
its worker sleeps half a second between three questions, whatever that interval is. So the sites of a short round began
up to half a second after it was opened, each at another time. Here a request waits at the server until a task stands
(`ring`), the run ends, or `_HOLD` seconds are over.

A waiting request holds one of FLARE's threads (64 in a process), so only `_MOST` of them wait, and one for each site.
None waits where a simulator's sites take turns: whoever waits would keep the others from their tasks.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.server.server_runner import ServerRunner

from fedsm.flare.compat.simulator import WAITING

_HOLD = 10.0  # seconds; a client gives a request up after 300
_LOOK = 0.2  # seconds between looks at whether the run has ended
_MOST = 24

_bell = threading.Condition()
_rung = 0  # how often tasks were sent
_waiting: set[str] = set()  # the clients whose requests wait


def ring() -> None:
    """To be called when tasks have been sent: requests that wait are looked at again."""
    global _rung
    with _bell:
        _rung += 1
        _bell.notify_all()


def hold_requests() -> None:
    """Lets requests for a task wait in the server of this job, which has a process of its own."""
    look = ServerRunner._try_to_get_task
    if getattr(look, "fedsm", False):
        return

    def wait_for_task(self: ServerRunner, client: Client, fl_ctx: FLContext, *args: Any, **kwargs: Any) -> tuple:
        seen = _rung
        found: tuple = look(self, client, fl_ctx, *args, **kwargs)
        if found[0] or WAITING.takes_turns or not _enter(client.name):
            return found
        try:
            deadline = time.monotonic() + _HOLD
            while not found[0] and _is_open(self) and time.monotonic() < deadline:
                with _bell:
                    rung = _bell.wait_for(partial(_rung_since, seen), _LOOK)
                    seen = _rung
                if rung:
                    found = look(self, client, fl_ctx, *args, **kwargs)
            return found
        finally:
            with _bell:
                _waiting.discard(client.name)

    setattr(wait_for_task, "fedsm", True)  # noqa: B010  mypy knows no attributes of functions
    ServerRunner._try_to_get_task = wait_for_task


def _rung_since(seen: int) -> bool:
    return _rung != seen


def _enter(client: str) -> bool:
    """Whether there is a place for a request of this client."""
    with _bell:
        if client in _waiting or len(_waiting) >= _MOST:
            return False
        _waiting.add(client)
        _bell.notify_all()
        return True


def _is_open(runner: ServerRunner) -> bool:
    return runner.status == "started" and runner.current_wf is not None and not runner.abort_signal.triggered
