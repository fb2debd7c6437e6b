"""Follows a job on a FLARE server with one bar, until it ends or is lost."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tqdm import tqdm

from app_fedsm.federation import session as sessions
from app_fedsm.federation.session import Login
from app_fedsm.runs.progress import WITHOUT_ROUNDS, show, tick
from fedsm.core.errors import UserError
from fedsm.core.text import printable

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

POLL_SECONDS = 1.0
PATIENCE = 60.0  # seconds that a server may be unreachable while a job is followed
DISPATCHED = "DISPATCHED"
WAITING = ("SUBMITTED", "APPROVED", DISPATCHED)
RUNNING = "RUNNING"
COMPLETED = "FINISHED:COMPLETED"


class JobChanged(UserError):
    """The job that is followed cannot end as it is; `fedsm resume RUN` goes on with it."""


class JobLost(JobChanged):
    """The server was killed, and with it the job."""


def events_of(session: Session, job_id: str, after: int = 0) -> list[dict]:
    """The progress of a running job; empty where it does not run yet, or has ended."""
    from fedsm.flare.watch import TOPIC

    with contextlib.suppress(Exception):  # FLARE's error for a job that has just ended is a general one
        return session.do_app_command(job_id, TOPIC, {"after": after})["events"]
    return []


class _LostJobCheck:
    """Notices a job that was lost with its server, which FLARE lists as running for ever, or as dispatched.

    A job that has just ended looks the same as long as the server waits for the sites' last messages, and one that is
    dispatched as long as the server waits for the sites to start it. So this waits, too, and only briefly where a
    running job's server was seen to be away.
    """

    def __init__(self, job_id: str):
        self._job_id = job_id
        self._stopped: float | None = None
        self.server_was_away = False

    def check(self, session: Session, status: str) -> None:
        """To be called regularly while FLARE says that the job runs or is dispatched.

        Raises:
            UserError: it is lost.
        """
        if sessions.runs(session, self._job_id):
            self._stopped = None
            return
        self._stopped = self._stopped or time.monotonic()
        soon = self.server_was_away and status == RUNNING
        if time.monotonic() - self._stopped > (PATIENCE / 4 if soon else 3 * PATIENCE):
            raise JobLost(
                f"the server does not run job {self._job_id}, though FLARE lists it as {status.lower()}: it was lost"
                " when the server was started again",
                remedy="`fedsm resume RUN` goes on from its last checkpoint",
            )


def follow(
    login: Login, job_id: str, steps: int, unit: str,
    watch: Callable[[Session], object] | None = None, patience: float = PATIENCE,
) -> tuple[dict, str | None]:  # fmt: skip
    """Shows a bar until the job has ended; returns its meta data and the reason, if it said that it failed.

    Args:
        login: the user's kit and study.
        job_id: the job.
        steps: the bar's length.
        unit: what a step is.
        watch: called again and again while the job runs; what it raises ends the following.
        patience: seconds that the server may be unreachable.
    """
    seen, failure, silent_since, refusals_shown = 0, None, None, False
    lost_job_check = _LostJobCheck(job_id)
    form = WITHOUT_ROUNDS if unit == "round" else None
    with tqdm(total=steps, unit=unit, desc="submitted", bar_format=form) as bar:
        while True:
            try:
                with sessions.connect(login) as session:
                    while True:
                        silent_since = None
                        meta = session.get_job_meta(job_id)
                        status = meta["status"]
                        events = events_of(session, job_id, seen) if status == RUNNING else []
                        seen += len(events)
                        if status in (RUNNING, DISPATCHED) and not events:
                            lost_job_check.check(session, status)
                        for event in events:
                            failure = show(bar, event) or failure
                        if watch and status == RUNNING and seen:
                            watch(session)
                        if not refusals_shown and status not in WAITING:
                            for line in refusals(meta):
                                bar.write(printable(line), file=sys.stderr)
                            refusals_shown = True
                        if status in WAITING:
                            bar.set_description(status.lower())
                        elif status != RUNNING:
                            bar.set_description("ended")
                            bar.update(steps - bar.n if status == COMPLETED else 0)  # its events are gone with it
                            return meta, failure
                        tick(bar)
                        time.sleep(POLL_SECONDS)
            except JobChanged:
                raise
            except (UserError, ConnectionError) as e:
                lost_job_check.server_was_away = True
                silent_since = silent_since or time.monotonic()
                bar.set_description("no server")
                if time.monotonic() - silent_since > patience:
                    raise UserError(str(e), remedy=f"job {job_id} may still run: `fedsm fetch` goes on") from e
                time.sleep(POLL_SECONDS)


def refusals(meta: dict) -> list[str]:
    """The sites that did not accept a job, from FLARE's notes on sending it out; one line each."""
    noted = [str(line).partition(": ") for line in meta.get("job_deploy_detail") or []]
    return [f"{site} refused the job: {' '.join(why.split())}" for site, _, why in noted if why and why != "OK"]
