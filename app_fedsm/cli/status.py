"""`fedsm status`: how far a run is, in one or two lines."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.runs.run_folder import PROGRESS, RESULTS, events_of, is_federation
from fedsm.core.errors import UserError
from fedsm.core.plain_json import reading
from fedsm.core.task_names import DEFAULT_STUDY

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

    from app_fedsm.federation.session import Login

_LAST = 5  # rounds whose median says how long the next will take


def summary(events: list[dict]) -> str:
    """A summary of a run's events: rounds, sites that answered, the last Dice, the time left."""
    if events and events[0]["event"] == "evaluating":  # a job of its own
        scored = [e["site"] for e in events if e["event"] == "scored"]
        return f"evaluation: {len(scored)} of {len(events[0]['sites'])} sites scored"
    started = next((e for e in reversed(events) if e["event"] == "started"), None)
    if started is None:
        return "starting"
    rows = [e for e in events if e["event"] == "round"]
    if not rows:
        return f"round {started['round']} of {started['rounds']} done, {len(started['sites'])} sites"
    last = rows[-1]
    parts = [f"round {last['round']} of {started['rounds']} done"]
    parts.append(f"{len(last['answered'])} of {len(started['sites'])} sites answered")
    parts += [f"{site} missing: {why}" for site, why in last["missing"].items()]
    parts += _refusals_and_warnings(events)
    scores: dict[str, float] = next((e["score"] for e in reversed(rows) if e["score"]), {})
    parts += [f"validation {started['scores'][t]} {t} {v:.3f}" for t, v in scores.items()]
    ended = events[-1]
    if ended["event"] == "failed":
        parts.append(f"failed: {ended['reason']}")
    elif ended["event"] == "round":
        left = (started["rounds"] - last["round"]) * statistics.median(e["seconds"] for e in rows[-_LAST:])
        parts.append(f"about {_duration(left)} of training left")
    else:
        parts.append(ended["event"])
    return ", ".join(parts)


def _refusals_and_warnings(events: list[dict]) -> list[str]:
    """Sites whose answers were refused or taken with a warning, how often, and the last reason."""
    noted: dict[tuple[str, str], list[str]] = {}
    for event in events:
        if event["event"] in ("refused", "warned"):
            noted.setdefault((event["site"], event["event"]), []).append(event["reason"])
    return [f"{site} {kind} {len(why)} times (last: {why[-1]})" for (site, kind), why in noted.items()]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def of_run(out: Path) -> str:
    """The status of a run's folder: from the server that its job runs on, or from its own files."""
    from app_fedsm.federation import remote

    if is_federation(out) and not (out / RESULTS).is_file():
        job = remote.load_job(out)
        return of_job(remote.login_of(job), job["job_id"])
    with reading(out / PROGRESS, "the run itself may be sound: `fedsm report` and `fedsm resume` do not need it"):
        return summary(events_of(out))


def of_job(login: Login, job_id: str) -> str:
    """The status of a job on a server."""
    from app_fedsm.federation import session

    with session.connect(login) as opened:
        try:
            meta = opened.get_job_meta(job_id)
        except Exception as e:  # FLARE's errors for a job that it does not know
            raise UserError(f"job {job_id}: {' '.join(str(e).split())}") from e
        return _job_line(opened, job_id, meta["status"])


def _job_line(session: Session, job_id: str, status: str) -> str:
    """A job's line; of a job that has ended the server keeps only the result, which `fedsm fetch` downloads."""
    from app_fedsm.federation import session as sessions
    from app_fedsm.federation.following import events_of

    if status != "RUNNING":
        return f"{job_id} {status}"
    events = events_of(session, job_id)
    if not events and not sessions.runs(session, job_id):
        return f"{job_id} {status} in FLARE's list, but not on the server: it ends, or was lost (`fedsm resume RUN`)"
    return f"{job_id} {status}: {summary(events)}"


def of_server(login: Login) -> str:
    """The status of a server: the connected sites and the jobs, of the login's study."""
    from app_fedsm.federation import session

    with session.connect(login) as opened:
        sites = session.registered(opened)
        study = "" if login.study == DEFAULT_STUDY else f", study {login.study}"
        lines = [
            f"server {session.address(login.kit)}{study}: {len(sites)} sites connected: {', '.join(sites) or 'none'}"
        ]
        jobs = sorted(opened.list_jobs() or [], key=lambda job: str(job.get("submit_time")))
        for job in jobs:
            lines.append(f"{job.get('job_name', '')} {_job_line(opened, job['job_id'], job['status'])}")
        return "\n".join(lines)
