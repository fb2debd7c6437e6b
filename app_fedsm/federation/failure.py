"""Why a job on a FLARE server ended without results, where nobody followed it: from what the server keeps of it."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from app_fedsm.federation.following import COMPLETED, refusals

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

_PANIC = re.compile(r"FATAL_SYSTEM_ERROR received: (.+)")  # FLARE's line about a controller that gave up


def failure_of(session: Session, job_id: str, status: str) -> str | None:
    """The job's own reason, or the sites that refused it; None: it did not fail, or nothing is kept.

    FLARE reads all that it stored of the job for this, so it is for single jobs.
    """
    if not status.startswith("FINISHED:") or status == COMPLETED:
        return None
    with contextlib.suppress(Exception):  # FLARE's errors for a log that is not there any more
        log = session.get_job_logs(job_id, "server")["logs"].get("server") or ""
        if found := _PANIC.findall(log):
            return found[-1].strip()
    with contextlib.suppress(Exception):
        return "; ".join(refusals(session.get_job_meta(job_id))) or None
    return None
