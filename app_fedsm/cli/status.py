"""`fedsm status`: how far a run is, as data and in one or two lines."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_fedsm.cli.run_documents import JobStatus, RunStatus, ServerStatus
from app_fedsm.runs.hints import paste
from app_fedsm.runs.run_folder import PROGRESS, RESULTS, events_of, is_federation
from fedsm.core.errors import UserError
from fedsm.core.plain_json import reading
from fedsm.core.task_names import DEFAULT_STUDY

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

    from app_fedsm.federation.session import Login

_LAST = 5  # rounds whose median says how long the next will take
_RUNNING = "RUNNING"
_FLARE = {  # FLARE's word for a job that does not run -> ours
    "SUBMITTED": "submitted", "APPROVED": "submitted", "DISPATCHED": "submitted", "FINISHED:COMPLETED": "finished",
}  # fmt: skip
_PHASES = {  # the last event of these -> what goes on since
    "started": "starting", "registered": "training", "round": "training", "validating": "validating",
    "evaluating": "evaluating", "finished": "finished", "failed": "failed",
}  # fmt: skip
_ENDS = ("validating", "evaluating", "finished")  # what follows the rounds


def progress(events: list[dict]) -> dict[str, Any]:
    """How far a job is, from its events: fields of `JobStatus`."""
    phase = next((e for e in reversed(events) if e["event"] in _PHASES), {"event": "started"})
    found: dict[str, Any] = {"state": _PHASES[phase["event"]], "reason": phase.get("reason")}
    if events and events[0]["event"] == "evaluating":  # a job of its own
        scored = [e["site"] for e in events if e["event"] == "scored"]
        return found | {"sites": events[0]["sites"], "answered": scored}
    started = next((e for e in reversed(events) if e["event"] == "started"), None)
    if started is None:
        return found
    found |= {key: started[key] for key in ("sites", "rounds", "round")}
    found |= {kind: _notes(events, kind) for kind in ("refused", "warned")}
    if rows := [e for e in events if e["event"] == "round"]:
        found |= {key: rows[-1][key] for key in ("round", "answered", "missing")} | {"asked": rows[-1].get("asked")}
        found["quarantined"] = _resting(events, found["round"])
        scores: dict[str, float] = next((e["score"] for e in reversed(rows) if e["score"]), {})
        found["validation"] = [{"track": t, "measure": started["scores"][t], "value": v} for t, v in scores.items()]
        if found["state"] == "training":
            seconds = statistics.median(e["seconds"] for e in rows[-_LAST:])
            found["seconds_left"] = (found["rounds"] - found["round"]) * seconds
    return found


def _notes(events: list[dict], kind: str) -> list[dict]:
    """Sites whose answers were refused or taken with a warning, how often, and the last reason."""
    noted: dict[str, list[str]] = {}
    for event in events:
        if event["event"] == kind:
            noted.setdefault(event["site"], []).append(event["reason"])
    return [{"site": site, "times": len(why), "last_reason": why[-1]} for site, why in noted.items()]


def _resting(events: list[dict], last: int) -> list[dict]:
    """The sites that are in quarantine after round `last`; a run that went back may have told of one twice."""
    newest = {e["site"]: {k: e[k] for k in ("site", "until", "reason")} for e in events if e["event"] == "quarantined"}
    return [entry for entry in newest.values() if entry["until"] > last]


def summary(events: list[dict]) -> str:
    """A summary of a run's events: rounds, sites that answered, the last Dice, the time left."""
    return _progress_line(JobStatus.model_validate(progress(events)))


def describe(job: JobStatus) -> str:
    """A job in a line."""
    if job.flare_status is None:
        return _progress_line(job)
    line = f"{job.job_id} {job.flare_status}"
    if job.state == "lost":
        return f"{line} in FLARE's list, but not on the server: it ends, or was lost (`fedsm resume RUN`)"
    if job.flare_status == _RUNNING:
        return f"{line}: {_progress_line(job)}"
    return f"{line}: {job.reason}" if job.reason else line


_NEXT = {  # how it stands with a job whose result is not here -> the command, and what it does
    "finished": ("fetch", "downloads its result"), "failed": ("resume", "goes on from its last checkpoint"),
    "ended": ("resume", "goes on from its last checkpoint"), "lost": ("resume", "goes on from its last checkpoint"),
}  # fmt: skip


def describe_run(run: RunStatus) -> str:
    """A run's job in a line, and in a second one what to do next."""
    if run.command is None:
        return describe(run)
    return f"{describe(run)}\n`{run.command}` {_next(run.state)[1]}"


def _next(state: str) -> tuple[str, str]:
    return _NEXT.get(state, ("fetch", "follows it to its end"))


def describe_server(status: ServerStatus) -> str:
    """A server in a line, and a line for each of its jobs."""
    sites = ", ".join(status.connected) or "none"
    study = "" if status.study == DEFAULT_STUDY else f", study {status.study}"
    first = f"server {status.server}{study}: {len(status.connected)} sites connected: {sites}"
    return "\n".join([first, *(f"{job.name or ''} {describe(job)}" for job in status.jobs)])


def _progress_line(job: JobStatus) -> str:
    failed = [f"failed: {job.reason}"] if job.state == "failed" else []
    if job.rounds is None:
        done = f"evaluation: {len(job.answered)} of {len(job.sites)} sites scored" if job.sites else "starting"
        return ", ".join([done, *failed])
    parts = [f"round {job.round} of {job.rounds} done"]
    if not job.answered:
        return ", ".join([*parts, f"{len(job.sites)} sites", *failed])
    asked = f"{len(job.sites)} sites" if job.asked is None else f"{job.asked} sites that were asked"
    parts.append(f"{len(job.answered)} of {asked} answered")
    parts += [f"{site} missing: {why}" for site, why in job.missing.items()]
    for kind, notes in (("refused", job.refused), ("warned", job.warned)):
        parts += [f"{note.site} {kind} {note.times} times (last: {note.last_reason})" for note in notes]
    parts += [
        f"{q.site} in quarantine until round {q.until} ({q.reason}); for good: `fedsm forget {q.site} RUN`"
        for q in job.quarantined
    ]
    parts += [
        f"validation {s.measure} {s.track} {'-' if s.value is None else f'{s.value:.3f}'}" for s in job.validation
    ]
    if job.seconds_left is not None:
        parts.append(f"about {_duration(job.seconds_left)} of training left")
    return ", ".join([*parts, *failed, *([job.state] if job.state in _ENDS else [])])


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def of_run(out: Path) -> RunStatus:
    """The status of a run's folder: from the server that its job runs on, or from its own files."""
    from app_fedsm.federation import remote

    run, job = {"run": str(out.resolve())}, remote.load_job(out) if is_federation(out) else None
    if job and not (out / RESULTS).is_file():
        status = of_job(remote.login_of(job), job["job_id"])
        command = paste("fedsm", _next(status.state)[0], out)
        return RunStatus.model_validate(status.model_dump() | run | {"command": command})
    with reading(out / PROGRESS, "the run itself may be sound: `fedsm report` and `fedsm resume` do not need it"):
        return RunStatus.model_validate(progress(events_of(out)) | {"job_id": job and job["job_id"]} | run)


def of_job(login: Login, job_id: str) -> JobStatus:
    """The status of a job on a server."""
    from app_fedsm.federation import session

    with session.connect(login) as opened:
        try:
            meta = opened.get_job_meta(job_id)
        except Exception as e:  # FLARE's errors for a job that it does not know
            raise UserError(f"job {job_id}: {' '.join(str(e).split())}") from e
        return _on_server(opened, job_id, meta["status"], explain=True)


def _on_server(session: Session, job_id: str, status: str, name: str | None = None, explain: bool = False) -> JobStatus:
    """A job on a server, which of a job that has ended keeps only the result; `fedsm fetch` downloads it.

    Args:
        session: the server.
        job_id: the job.
        status: FLARE's word for it.
        name: the job's name.
        explain: look for the reason of a failure: FLARE reads all that it stored of the job for that.
    """
    from app_fedsm.federation import session as sessions
    from app_fedsm.federation.failure import failure_of
    from app_fedsm.federation.following import events_of

    events = events_of(session, job_id) if status == _RUNNING else []
    found: dict[str, Any]
    if status != _RUNNING:
        found = {"state": _FLARE.get(status, "ended")}
        found |= {"reason": failure_of(session, job_id, status)} if explain else {}
    elif events or sessions.runs(session, job_id):
        found = progress(events)
    else:
        found = {"state": "lost"}
    with reading(f"what the server says about job {job_id}", "ask its operator for the log"):
        return JobStatus.model_validate(found | {"job_id": job_id, "name": name, "flare_status": status})


def of_server(login: Login) -> ServerStatus:
    """The status of a server: the connected sites and the jobs, of the login's study."""
    from app_fedsm.federation import session

    with session.connect(login) as opened:
        jobs = sorted(opened.list_jobs() or [], key=lambda job: str(job.get("submit_time")))
        return ServerStatus(
            server=session.address(login.kit),
            study=login.study,
            connected=session.registered(opened),
            not_connected=[],
            jobs=[
                _on_server(opened, job["job_id"], job["status"], job.get("job_name"), explain=job is jobs[-1])
                for job in jobs
            ],
        )
