"""A job that goes on by itself after a fault: a site was restarted, the server was killed, a site's process died.

FLARE lets no restarted site into a running job, forgets its jobs when the server is killed, and ends a job when one
site's job process dies. `fedsm resume RUN` goes on from the last checkpoint in each case; this calls it, so that nobody
has to. The checkpoints are on the server, so nothing is lost when the supervisor itself is stopped: `fedsm fetch RUN`
supervises again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import POLL_SECONDS, JobChanged
from app_fedsm.federation.session import Login
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

SERVER_PATIENCE = 3600.0  # seconds that the server may be away
SITES_PATIENCE = 300.0  # seconds that the other sites have to come back after the server, once enough are there
_LOOK = 10.0  # seconds between two looks at the sites: each of them is asked


class SiteOutside(JobChanged):
    """Sites that were restarted wait outside a running job."""


class SitesOutside:
    """Notices sites that are connected but not in the job, while others are.

    A site may be seen so for a moment when the job starts or ends there, so only the second look in a row counts.

    Args:
        sites: the job's.
        job_id: the job.
    """

    def __init__(self, sites: list[str], job_id: str):
        self._sites = sites
        self._job_id = job_id
        self._outside: set[str] = set()
        self._next = 0.0

    def __call__(self, session: Session) -> None:
        """To be called while the job runs.

        Raises:
            SiteOutside: naming the sites.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK
        running = sessions.running_at(session)
        inside = {site for site in self._sites if self._job_id in running.get(site, set())}
        outside = {site for site in self._sites if site in running} - inside if inside else set()
        if both := outside & self._outside:
            names = ", ".join(sorted(both))
            raise SiteOutside(f"{names} came back, and FLARE lets no restarted site into a running job")
        self._outside = outside


def supervise(out: Path, times: int, tell: Callable[[str], object]) -> dict:
    """Follows the job of a run's folder to its end, and lets it go on after a fault.

    Args:
        out: the run's folder, as `remote.submit` left it.
        times: how often at most; 0: not at all.
        tell: called with a line each time.

    Returns:
        the content of results.json.

    Raises:
        JobFailed, UserError: what cannot be mended by going on, or happened once too often.
    """
    if not times:
        return remote.finish(out)
    done = 0
    while True:
        job = remote.load_job(out)
        outside = SitesOutside(job["sites"], job["job_id"]) if done < times else None
        anew = False
        try:
            return remote.finish(out, outside, SERVER_PATIENCE)
        except (JobChanged, remote.JobFailed) as e:
            anew = isinstance(e, remote.JobFailed) and e.no_checkpoint
            if done == times or (isinstance(e, remote.JobFailed) and not (e.can_go_on or anew)):
                raise
            why = e.message if isinstance(e, UserError) else str(e)
        try:
            new, away = _go_on(out, job, anew)
        except remote.StillRuns:  # the site that was outside has gone again
            continue
        done += 1
        how = "starts from the first round" if anew else "goes on from the last checkpoint"
        without = f", without {', '.join(away)}" if away else ""
        tell(f"{why}: job {new} {how}{without} ({done} of at most {times} times)")


def _go_on(out: Path, job: dict, anew: bool) -> tuple[str, list[str]]:
    """Resumes the run when the sites are there; waits again where the server or a site goes away meanwhile.

    Raises:
        StillRuns: nothing was wrong any more.
        UserError: what waiting cannot mend, or too long.
    """
    started, stopping = time.monotonic(), 0.0
    while True:
        _wait_for_sites(remote.login_of(job), job["sites"], int(job["settings"]["min_sites"]))
        try:
            return remote.resume(out, anew=anew)
        except (sessions.NoServer, remote.NotYet, remote.StillRuns) as e:
            # Once a stop was asked for, a job that still runs is one that ends.
            if isinstance(e, remote.StillRuns) and time.monotonic() > stopping:
                raise
            stopping = stopping or time.monotonic() + remote.STOP_SECONDS
            if time.monotonic() - started > SERVER_PATIENCE:
                raise
        time.sleep(POLL_SECONDS)


def _wait_for_sites(login: Login, sites: list[str], enough: int) -> None:
    """Waits until all sites are connected; for the last of them only a while, once enough are there.

    Raises:
        UserError: the server or too many sites stay away.
    """
    started = time.monotonic()
    here: list[str] = []
    while True:
        waited = time.monotonic() - started
        try:
            with sessions.connect(login) as session:
                here = [site for site in sessions.registered(session) if site in sites]
        except (UserError, ConnectionError) as e:
            if waited > SERVER_PATIENCE:
                raise UserError(str(e), remedy="start the server, then `fedsm resume RUN`") from e
        if len(here) == len(sites) or (len(here) >= enough and waited > SITES_PATIENCE):
            return
        if waited > SERVER_PATIENCE:
            missing = ", ".join(site for site in sites if site not in here)
            raise UserError(f"not connected: {missing}", remedy="start them, then `fedsm resume RUN`")
        time.sleep(POLL_SECONDS)
