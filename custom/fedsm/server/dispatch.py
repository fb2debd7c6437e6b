"""Sends every site its own task and waits: for all, for the deadline, or for the job's end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.server.memory import MessageCollector

_WAKE_UP = 0.02  # seconds between looks at the abort signal and at the memory


class _ClientTasks(list):
    """A task's record of whom it was sent to, which holds each entry once.

    FLARE 2.9 appends the entry again when a client fetches again after a lost reply while several tasks stand; its
    monitor thread then dies of a KeyError and the job hangs for ever, timeouts and all.
    """

    def append(self, item: ClientTask) -> None:
        if item not in self:
            super().append(item)


class _Inbox:
    """Hands the sites' answers on in the order of the sites, and none after it was closed.

    In the order of the sites, because sums of floats depend on their order in the last bits, and a run should not
    depend on who is fastest. What has to wait costs no memory: FLARE receives it to the server's disk.
    """

    def __init__(self, order: list[str], accept: Callable[[Shareable, FLContext], object]):
        self._turns = list(order)
        self._accept = accept
        self._waiting: dict[str, tuple[Shareable, FLContext]] = {}
        self._closed = False
        self.answered: set[str] = set()
        self.changed = threading.Condition()

    def put(self, site: str, result: Shareable, fl_ctx: FLContext) -> bool:
        """Takes an answer; False if it came too late."""
        with self.changed:
            if self._closed:
                return False
            self.answered.add(site)
            self._waiting[site] = (result, fl_ctx)
            while self._turns and self._turns[0] in self._waiting:
                self._accept(*self._waiting.pop(self._turns.pop(0)))
            self.changed.notify()
        return True

    def close(self) -> None:
        """Takes nothing more and hands on what still waits for a site that did not answer."""
        with self.changed:
            self._closed = True
            for site in self._turns:
                if site in self._waiting:
                    self._accept(*self._waiting.pop(site))


def dispatch(
    controller: Controller,
    name: str,
    payloads: dict[str, Callable[[], Shareable]],
    timeout: float,
    accept: Callable[[Shareable, FLContext], object],
    fl_ctx: FLContext,
    abort_signal: Signal,
    absent: Collection[str] = (),
    absent_wait: float = 0,
) -> dict[str, str]:
    """Gives each site its own task and waits for the answers.

    Args:
        controller: the controller in whose name tasks are sent.
        name: the task's name.
        payloads: site -> what makes its shareable. A broadcast cannot serve: it carries one payload for all.
        timeout: seconds until the round is closed with those that answered.
        accept: called with each answer, one at a time, in the order of `payloads`.
        fl_ctx: the context.
        abort_signal: ends the waiting.
        absent: sites that missed their last task. One that has not fetched this one after `absent_wait` seconds is not
            waited for: a site that is gone for good would cost every round its whole timeout. One that fetches is.
        absent_wait: see `absent`.

    Returns:
        site -> why it did not answer; empty when all did. Nothing is accepted any more after the return.
    """
    inbox, collector = _Inbox(list(payloads), accept), MessageCollector()

    def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
        result, client_task.result = client_task.result, None  # FLARE would hold the payload until the task ends
        if not inbox.put(client_task.client.name, result, fl_ctx):
            controller.process_result_of_unknown_task(client_task.client, name, client_task.id, result, fl_ctx)

    started = time.monotonic()
    tasks: dict[str, Task] = {}
    for site, make in payloads.items():
        task = Task(name, data=make(), timeout=math.ceil(timeout), result_received_cb=received)
        task.client_tasks = _ClientTasks()
        tasks[site] = task
        controller.send(task, fl_ctx, targets=[site])

    gone: set[str] = set()
    while not abort_signal.triggered and time.monotonic() < started + timeout:
        dead = {s for s, t in tasks.items() if t.completion_status is not None}
        if time.monotonic() > started + absent_wait:
            gone = {s for s in absent if s in tasks and not tasks[s].client_tasks}
        with inbox.changed:
            if len(inbox.answered | dead | gone) == len(tasks):
                break
            inbox.changed.wait(_WAKE_UP)
        collector.look()

    inbox.close()
    missing = {}
    for site, task in tasks.items():
        if site not in inbox.answered:
            away = site in gone and time.monotonic() < started + timeout
            missing[site] = _reason(task, abort_signal, timeout) if not away else "still away: it fetched no task"
            controller.cancel_task(task, TaskCompletionStatus.CANCELLED, fl_ctx)
    return missing


def _reason(task: Task, abort_signal: Signal, timeout: float) -> str:
    if abort_signal.triggered:
        return "the job was stopped"
    if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
        return "the site is disconnected"
    return f"no answer within {timeout:g} s"
