"""Sends every site its own task and waits: for all, for the deadline, or for the job's end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.flare.compat.client_tasks import ClientTasks
from fedsm.flare.compat.memory import MessageCollector
from fedsm.flare.compat.simulator import WAITING
from fedsm.flare.compat.task_requests import ring
from fedsm.flare.identity import set_sender
from fedsm.flare.inbox import Inbox
from fedsm.server.patience import Patience

_WAKE_UP = 0.02  # seconds between looks at the abort signal and at the memory


class Dispatcher:
    """Sends tasks in a controller's name and waits for the answers.

    Args:
        controller: the controller.
        fl_ctx: the context.
        abort_signal: ends the waiting.
        patience: how long sites that missed earlier tasks are waited for; it takes note of every task.
    """

    def __init__(
        self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, patience: Patience | None = None
    ):
        self._controller = controller
        self._fl_ctx = fl_ctx
        self._abort_signal = abort_signal
        self._patience = patience or Patience()

    def send(
        self,
        name: str,
        payloads: dict[str, Callable[[], Shareable]],
        timeout: float,
        inbox: Inbox,
        lenient: bool = False,
    ) -> dict[str, str]:
        """Gives each site its own task.

        Args:
            name: the task's name.
            payloads: site -> what makes its shareable. A broadcast cannot serve: it carries one payload for all.
            timeout: seconds until the task is closed with those that answered.
            inbox: gets the answers, each with the client that FLARE authenticated as its sender.
            lenient: whether sites that missed earlier tasks have the whole timeout, too.

        Returns:
            site -> why it did not answer; empty when all did. No answer is accepted after the return.
        """
        controller, abort_signal, patience, collector = (
            self._controller, self._abort_signal, self._patience, MessageCollector()
        )  # fmt: skip
        started = time.monotonic()
        took: dict[str, float] = {}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result, client_task.result = client_task.result, None  # FLARE would hold the payload until the task ends
            set_sender(fl_ctx, client_task.client.name)
            took.setdefault(client_task.client.name, time.monotonic() - started)
            WAITING.answered(client_task.client.name)
            if not inbox.put(client_task.client.name, result, fl_ctx):
                controller.process_result_of_unknown_task(client_task.client, name, client_task.id, result, fl_ctx)

        WAITING.open(payloads)
        tasks: dict[str, Task] = {}
        for site, make in payloads.items():
            task = Task(name, data=make(), timeout=math.ceil(timeout), result_received_cb=received)
            task.client_tasks = ClientTasks()
            tasks[site] = task
            controller.send(task, self._fl_ctx, targets=[site])
        ring()

        trusted = {site for site in tasks if lenient or patience.trusts(site)}
        others = None if trusted else patience.others  # what the slowest of them took
        given_up: dict[str, str] = {}
        while not abort_signal.triggered and (waited := time.monotonic() - started) < timeout:
            dead = {s for s, t in tasks.items() if t.completion_status is not None}
            if others is None and trusted and trusted <= inbox.answered | dead:
                others = waited
                patience.note_others(waited)
            given_up = {
                site: reason
                for site in tasks.keys() - trusted - inbox.answered
                if (reason := _impatience(site, tasks[site], patience, waited, timeout, others))
            }
            with inbox.changed:
                if len(inbox.answered | dead | given_up.keys()) == len(tasks):
                    break
                inbox.changed.wait(_WAKE_UP)
            collector.look()

        WAITING.close()
        inbox.close()
        missing = {}
        for site, task in tasks.items():
            patience.note(site, took.get(site) if site in inbox.answered else None)
            if site not in inbox.answered:
                missing[site] = given_up.get(site) or _reason(task, abort_signal, timeout)
                controller.cancel_task(task, TaskCompletionStatus.CANCELLED, self._fl_ctx)
        return missing


def _impatience(
    site: str, task: Task, patience: Patience, waited: float, timeout: float, others: float | None
) -> str | None:
    """Why a site that missed earlier tasks is not waited for any more, or None."""
    if not task.client_tasks:
        return "still away: it fetched no task" if waited > patience.absent_wait else None
    seconds = patience.seconds(site, timeout, others)
    if waited > seconds:
        return f"no answer within {seconds:.0f} s, and none to its last task either"
    return None


def _reason(task: Task, abort_signal: Signal, timeout: float) -> str:
    if abort_signal.triggered:
        return "the job was stopped"
    if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
        return "the site is disconnected"
    return f"no answer within {timeout:g} s"
