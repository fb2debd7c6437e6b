"""One question to the sites, asked again where too few gave a good answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors, payload_bytes
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.dispatch import dispatch
from fedsm.flare.inbox import Inbox
from fedsm.server.patience import Patience

RETRY_PAUSE = 5.0  # seconds before sites are asked again: a site that failed at once may need a moment
GO_ON = "go on from the last checkpoint with `fedsm resume RUN` (in the simulator: `fedsm run --resume --out RUN`)"


@dataclass
class Question:
    """What the sites are asked.

    Attributes:
        what: names it in messages.
        task: the task's name.
        number: the round.
        sites: whom to ask, in index order.
        needed: good answers without which the job cannot go on.
        names: the tracks that play (None: all).
        payload: site -> what goes down to it, by track.
        judge: what else is wrong with a site's meta, or None.
        timeout: seconds; None: the job's `round_timeout`.
    """

    what: str
    task: str
    number: int
    sites: list[str]
    needed: int
    names: list[str] | None = None
    payload: Callable[[str], dict[str, Tensors]] = lambda site: {}
    judge: Callable[[str, dict], str | None] = lambda site, meta: None
    timeout: float | None = None


@dataclass
class Answers:
    """What came of a question.

    Attributes:
        accepted: site -> the good answer's meta, in the order in which they were merged.
        missing: site -> why there is none: refused or silent.
        down: site -> bytes sent to it.
        attempts: how often it was asked.
    """

    accepted: dict[str, dict] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    attempts: int = 0


def ask(
    controller: Controller, aggregator: SoftPullAggregator, question: Question, common: dict, job: JobSettings,
    patience: Patience, fl_ctx: FLContext, abort_signal: Signal,
) -> Answers:  # fmt: skip
    """Gives every site its task; the aggregator judges the answers.

    With fewer than `needed` good answers, those that gave none are asked again. The good ones are merged already and
    stay: the round is not closed between attempts, so the models that go down are the same, no update is merged twice
    and none is thrown away. Whoever was silent has the full time again, because the job cannot go on without.

    Args:
        controller: in whose name tasks are sent.
        aggregator: checks and merges.
        question: what is asked.
        common: the meta of every task.
        job: the job's settings.
        patience: how long sites that missed earlier tasks are waited for; it takes note of this one.
        fl_ctx: the context.
        abort_signal: ends the waiting.

    Raises:
        UserError: too few good answers after all attempts.
    """
    answers = Answers()
    timeout = job.round_timeout if question.timeout is None else question.timeout
    retries = job.round_retries if question.needed else 0
    aggregator.begin(question.task, question.number, question.names, question.judge)
    asked = question.sites
    while True:
        answers.attempts += 1
        payloads = {site: question.payload(site) for site in asked}
        for site, payload in payloads.items():
            answers.down[site] = answers.down.get(site, 0) + payload_bytes(payload)
        silent = dispatch(
            controller,
            question.task,
            {site: lambda p=p: exchange.pack(p, dict(common)) for site, p in payloads.items()},
            timeout,
            Inbox(asked, aggregator.accept, aggregator.compare if aggregator.compares_first else None),
            fl_ctx,
            abort_signal,
            patience,
            lenient=answers.attempts > 1,
        )
        for site, reason in silent.items():
            controller.log_error(fl_ctx, f"fedsm round={question.number} site={site} missing: {reason}")
        if aggregator.broken:
            raise UserError(f"{aggregator.broken}; {GO_ON}")
        answers.accepted = aggregator.accepted
        answers.missing = {s: r for s, r in (aggregator.refused | silent).items() if s not in answers.accepted}
        if abort_signal.triggered or len(answers.accepted) >= question.needed:
            return answers
        if answers.attempts > retries:
            raise UserError(_too_few(question, answers))
        controller.log_warning(
            fl_ctx, f"fedsm {question.what}: {len(answers.accepted)} of {question.needed} answers, asking again"
        )
        _pause(RETRY_PAUSE, abort_signal)
        asked = [site for site in question.sites if site not in answers.accepted]


def _too_few(question: Question, answers: Answers) -> str:
    reasons = "; ".join(f"{site}: {reason}" for site, reason in answers.missing.items())
    diverged = any("diverged" in reason for reason in answers.missing.values())
    back = ", or from an earlier one with `--from-round N` if an update that was warned of did harm" if diverged else ""
    remedy = GO_ON + back if question.number else "then start the run again"
    times = f" after {answers.attempts} attempts" if answers.attempts > 1 else ""
    return (
        f"{question.what}: {len(answers.accepted)} of {len(question.sites)} sites gave a good answer{times},"
        f" min_sites is {question.needed} ({reasons}); {remedy}"
    )


def _pause(seconds: float, abort_signal: Signal) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not abort_signal.triggered:
        time.sleep(0.05)
