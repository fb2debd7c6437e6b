"""Sends every site its own task and waits: for all, for the deadline, or for the job's end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.server.memory import collect_messages

_WAKE_UP = 0.1  # seconds between looks at the abort signal


class _ClientTasks(list):
    """A task's record of whom it was sent to, which holds each entry once.

    FLARE 2.9 appends the entry again when a client fetches again after a lost reply while several tasks stand; its
    monitor thread then dies of a KeyError and the job hangs for ever, timeouts and all.
    """

    def append(self, item: ClientTask) -> None:
        if item not in self:
            super().append(item)


def dispatch(
    controller: Controller,
    name: str,
    payloads: dict[str, Callable[[], Shareable]],
    timeout: float,
    on_result: Callable[[str, Shareable, FLContext], None],
    fl_ctx: FLContext,
    abort_signal: Signal,
) -> dict[str, str]:
    """Gives each site its own task and waits for the answers.

    Args:
        controller: the controller in whose name tasks are sent.
        name: the task's name.
        payloads: site -> what makes its shareable. A broadcast cannot serve: it carries one payload for all.
        timeout: seconds until the round is closed with those that answered.
        on_result: called with each answer as it arrives, one at a time.
        fl_ctx: the context.
        abort_signal: ends the waiting.

    Returns:
        site -> why it did not answer; empty when all did.
    """
    answered: set[str] = set()
    changed = threading.Condition()

    def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
        site = client_task.client.name
        result, client_task.result = client_task.result, None  # FLARE would hold the payload until the task ends
        on_result(site, result, fl_ctx)
        with changed:
            answered.add(site)
            changed.notify()

    deadline = time.monotonic() + timeout
    tasks: dict[str, Task] = {}
    for site, make in payloads.items():
        task = Task(name, data=make(), timeout=math.ceil(timeout), result_received_cb=received)
        task.client_tasks = _ClientTasks()
        tasks[site] = task
        controller.send(task, fl_ctx, targets=[site])

    dead: set[str] = set()
    while not abort_signal.triggered and time.monotonic() < deadline:
        with changed:
            if len(answered | dead) == len(tasks):
                break
            changed.wait(_WAKE_UP)
        collect_messages()
        dead = {s for s, t in tasks.items() if s not in answered and t.completion_status is not None}

    missing = {}
    for site, task in tasks.items():
        if site not in answered:
            missing[site] = _reason(task, abort_signal, timeout)
            controller.cancel_task(task, TaskCompletionStatus.CANCELLED, fl_ctx)
    return missing


def _reason(task: Task, abort_signal: Signal, timeout: float) -> str:
    if abort_signal.triggered:
        return "the job was stopped"
    if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
        return "the site is disconnected"
    return f"no answer within {timeout:g} s"
