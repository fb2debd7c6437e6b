"""One task for the sites, repeated where too few gave a good answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.core.errors import UserError
from fedsm.core.mapped import is_mapped, release
from fedsm.core.model_store import IN_MEMORY, ModelStore, opened
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.core.wire import Wire, wire_of
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.dispatch import Dispatcher
from fedsm.flare.inbox import Inbox
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.server.patience import Patience

RETRY_PAUSE = 5.0  # seconds before sites are asked again: a site that failed at once may need a moment
GO_ON = "go on from the last checkpoint with `fedsm resume RUN`"


class TooFewAnswers(UserError):
    """A task did not get the good answers that it needs.

    Attributes:
        can_go_on: whether sites that were only silent would be enough: the job may go on when they are back.
    """

    can_go_on = False


class TaskRunner:
    """Sends tasks to the sites and lets the aggregator check the answers.

    Args:
        controller: the controller that sends the tasks.
        aggregator: checks and merges.
        job: the job's settings.
        common_meta: spec -> the meta of the task, the same for every site.
        fl_ctx: the context.
        abort_signal: ends the waiting.
        store: keeps what travels of networks that are kept there.
    """

    def __init__(
        self, controller: Controller, aggregator: SoftPullAggregator, job: JobSettings,
        common_meta: Callable[[TaskSpec], dict], fl_ctx: FLContext, abort_signal: Signal,
        store: ModelStore = IN_MEMORY,
    ):  # fmt: skip
        self._controller = controller
        self._aggregator = aggregator
        self._job = job
        self._common_meta = common_meta
        self._fl_ctx = fl_ctx
        self._abort_signal = abort_signal
        self._store = store
        self._dispatcher = Dispatcher(controller, fl_ctx, abort_signal, Patience(job.absent_wait))

    def run_task(self, spec: TaskSpec) -> TaskResults:
        """Gives every site its task and waits for the answers.

        With fewer than `needed` good answers, those that gave none are asked again. The good ones are merged already
        and stay: the round is not closed between attempts, so the models that go down are the same, no update is merged
        twice and none is lost. Silent sites have the full time again, because the job cannot go on without them. Sites
        at which a person must act first are not asked again. Where there are spare sites (`fraction`), they are asked
        in the place of those that gave no good answer, as far as they go round.

        Raises:
            TooFewAnswers: after all attempts, or no attempt could bring enough.
            UserError: an answer could not be merged.
        """
        results = self._aggregator.begin(spec)
        retries = self._job.round_retries if spec.needed else 0
        asked, spare = spec.sites, list(spec.spare)
        silent: dict[str, str] = {}
        while True:
            results.attempts += 1
            results.asked += [site for site in asked if site not in results.asked]
            silent = {s: r for s, r in silent.items() if s not in asked} | self._ask(asked, spec, results)
            if results.broken:
                raise UserError(results.broken, remedy=GO_ON)
            results.missing = {s: r for s, r in (results.refused | silent).items() if s not in results.accepted}
            if self._abort_signal.triggered or len(results.accepted) >= spec.needed:
                return results
            asked, spare = self._next(results, spare, spec.needed - len(results.accepted))
            if results.attempts > retries or len(results.accepted) + len(asked) < spec.needed:
                raise _too_few(spec, results)
            self._controller.log_warning(
                self._fl_ctx, f"fedsm {spec.what}: {len(results.accepted)} of {spec.needed} answers, asking again"
            )
            self._pause(RETRY_PAUSE)

    def _next(self, results: TaskResults, spare: list[str], short: int) -> tuple[list[str], list[str]]:
        """Who is asked now that so many answers are missing, and which sites are spare after that."""
        fresh, left = spare[:short], spare[short:]
        again = [site for site in results.asked if site not in results.accepted and site not in results.unready]
        chosen = set(fresh) if len(fresh) == short else {*fresh, *again}
        return [site for site in self._aggregator.sites if site in chosen], left

    def _ask(self, sites: list[str], spec: TaskSpec, results: TaskResults) -> dict[str, str]:
        """One attempt; site -> why it was silent."""
        wire, models = wire_of(self._job, spec.task), {site: spec.payload(site) for site in sites}
        made: dict[int, Any] = {}
        payloads = {site: self._travels(site, payload, wire, made) for site, payload in models.items()}
        for site, payload in payloads.items():
            results.down[site] = results.down.get(site, 0) + payload_bytes(payload)
        meta = self._common_meta(spec)
        compare = self._aggregator.compare if self._aggregator.compares_first else None
        silent = self._dispatcher.send(
            spec.task,
            {site: partial(_packed, payload, meta) for site, payload in payloads.items()},
            self._job.round_timeout if spec.timeout is None else spec.timeout,
            Inbox(sites, self._aggregator.accept, compare),
            lenient=results.attempts > 1,
        )
        for site, reason in silent.items():
            self._controller.log_error(self._fl_ctx, f"fedsm round={spec.number} site={site} missing: {reason}")
        return silent

    def _travels(self, site: str, payload: dict[str, Tensors], wire: Wire, made: dict[int, Any]) -> dict[str, Tensors]:
        """What goes down to a site. What was rounded of a network in a file goes to a file, too."""
        if not wire.rounds:
            return payload
        sent = wire.send({name: tensors for name, tensors in payload.items() if not is_mapped(tensors)}, made)
        for name in payload.keys() - sent.keys():
            for part, tensors in wire.send({name: payload[name]}).items():
                sent[part] = opened(self._store.put(f"{part}.{site}.sent", tensors))
            release(payload[name])
        return sent

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._abort_signal.triggered:
            time.sleep(0.05)


def _packed(payload: dict[str, Tensors], meta: dict) -> Shareable:
    return exchange.pack(payload, dict(meta))


def _too_few(spec: TaskSpec, results: TaskResults) -> TooFewAnswers:
    same: dict[str, list[str]] = {}
    for site, reason in results.missing.items():
        same.setdefault(reason, []).append(site)
    reasons = "; ".join(f"{', '.join(sites)}: {reason}" for reason, sites in same.items())
    diverged = any("diverged" in reason for reason in results.missing.values())
    back = ", or from an earlier one with `--from-round N` if an update that was warned of did harm" if diverged else ""
    remedy = GO_ON + back if spec.number else "start the run again"
    times = f" after {results.attempts} attempts" if results.attempts > 1 else ""
    error = TooFewAnswers(
        f"{spec.what}: {len(results.accepted)} of {len(results.asked)} sites gave a good answer{times},"
        f" min_sites is {spec.needed} ({reasons})",
        remedy=remedy,
    )
    silent = results.missing.keys() - results.refused.keys()
    error.can_go_on = len(results.accepted) + len(silent) >= spec.needed
    return error
