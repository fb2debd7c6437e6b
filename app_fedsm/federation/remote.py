"""Jobs on a FLARE server: submit one, resume one, download its result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import (
    COMPLETED,
    PATIENCE,
    POLL_SECONDS,
    RUNNING,
    WAITING,
    events_of,
    follow,
    refusals,
)
from app_fedsm.federation.session import Login
from app_fedsm.runs.run_folder import EARLIER, LOG, PROGRESS, RESULTS, RUN, check_links, check_rounds, collect
from app_fedsm.runs.run_folder import events_of as progress_of
from app_fedsm.tracking import DEFAULT_TRACKING, Tracking, noted_tracking
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.limits import MOST_TIMES, is_whole
from fedsm.core.names import check_job_id, check_site_names
from fedsm.core.plain_json import parse_json, read_json, reading
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import DEFAULT_STUDY
from fedsm.server.resume import check_rounds_kept

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

_ASKED_TOO_EARLY = "no app command func"  # FLARE's word for a job that was asked for its progress before it had begun
_DEAD_PROCESS = ("FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL")
STOP_SECONDS = 3 * PATIENCE  # the server waits for an answer of each site, also of one that was just killed
_NOTED = ("job_id", "kit", "settings", "sites", "byoc", "resources", "earlier")  # in run.json


class JobFailed(Exception):
    """The job ended without results; the message says why.

    Attributes:
        can_go_on: whether it may end well when it goes on from its last checkpoint as it is: a process had died, or
            too few sites had answered.
        no_checkpoint: it was to go on, but the jobs before it had ended before their first checkpoint.
    """

    def __init__(self, reason: str, can_go_on: bool = False, no_checkpoint: bool = False):
        super().__init__(reason)
        self.can_go_on = can_go_on
        self.no_checkpoint = no_checkpoint


class NotYet(UserError):
    """What cannot be done now, but perhaps soon: sites are away, or a job is still being stopped."""


class StillRuns(UserError):
    """There is nothing to resume: the job runs, and no site waits outside."""


def check_connected(login: Login, sites: list[str]) -> None:
    """Checks that the server and sites answer, before anything is submitted or overwritten.

    Raises:
        UserError: naming the sites that do not, or the study that does not exist.
    """
    with sessions.connect(login) as session:
        here = sessions.registered(session) if sites else []
    if missing := [site for site in sites if site not in here]:
        where = "" if login.study == DEFAULT_STUDY else f", or not in study {login.study!r}"
        raise UserError(
            f"not connected to the server{where}: {', '.join(missing)}", remedy="start them, then submit again"
        )


def submit(
    login: Login, settings: JobSettings, out: Path, sites: list[str], byoc: bool = False,
    resources: dict[str, dict] | None = None, earlier: Sequence[str] = (), all_sites: list[str] | None = None,
    from_round: int | None = None, tracking: Tracking = DEFAULT_TRACKING, supervise: int = 0, token: str | None = None,
) -> str:  # fmt: skip
    """Submits a job and notes it in the run's folder, so that a later command can follow it.

    Args:
        login: the user's kit and study.
        settings: the job's settings.
        out: the run's folder, made ready by `prepare_folder`.
        sites: the sites that take part; see `check_connected`.
        byoc: carry the code inside the job.
        resources: see `FedSMRecipe`.
        earlier: ids of the jobs whose checkpoints this one goes on from, the newest first.
        all_sites: the sites of the run, where some of them are away; default: `sites`.
        from_round: the round to go on from; default: that of the newest checkpoint.
        tracking: where the curves go.
        supervise: how often the job goes on by itself after a fault, while a command follows it.
        token: see `hand_in`.

    Returns:
        the job's id.

    Raises:
        UserError: the server refuses the job.
    """
    from app_fedsm.recipes import FedSMRecipe

    out = out.resolve()
    with sessions.connect(login) as session:
        resume_from = f"job:{','.join(earlier)}" if earlier else ""
        recipe = FedSMRecipe(
            settings=settings, resume_from=resume_from, from_round=from_round, byoc=byoc, sites=sites,
            resources=resources, track=tracking,
        )  # fmt: skip
        recipe.export(str(out / "job"))
        job_id = hand_in(session, out / "job" / recipe.name, token)
    note = {"job_id": job_id, "kit": str(login.kit.resolve()), "study": login.study, "settings": settings.to_dict()}
    more = {"sites": all_sites or sites, "byoc": byoc, "resources": resources or {}, "earlier": list(earlier)}
    more["supervise"] = supervise
    write_json(out / RUN, note | more | tracking.note())
    return job_id


def hand_in(session: Session, folder: Path, token: str | None = None) -> str:
    """Submits an exported job; returns its id.

    Args:
        session: with the server.
        folder: the job.
        token: a word for this submission. If the connection was lost after the server had stored the job, the same
            word later brings that job's id, and no second job.

    Raises:
        UserError: the server refuses it.
    """
    from nvflare.fuel.flare_api import api_spec

    try:
        return session.submit_job(str(folder), *([token] if token else []))
    except (api_spec.NoConnection, api_spec.SessionClosed):  # the session says so
        raise
    except api_spec.AuthorizationError as e:
        raise UserError(
            "the server refused the job: this kit's user may not submit jobs",
            remedy="use the kit of a `lead`; the server's operator makes one",
        ) from e
    except (api_spec.SubmitTokenConflict, api_spec.SubmitTokenJobDeleted) as e:
        # Stored before, with other sites connected; or deleted since, or never complete.
        return _stored(session, getattr(e, "existing_job_id", None)) or hand_in(session, folder)
    except Exception as e:  # FLARE has a dozen exceptions for this
        raise UserError(f"the server refused the job: {' '.join(str(e).split())}") from e


def _stored(session: Session, job_id: str | None) -> str | None:
    """The id of a job, if the server has it."""
    from nvflare.fuel.flare_api.api_spec import JobNotFound

    with contextlib.suppress(JobNotFound):
        return job_id if job_id and session.get_job_meta(job_id) else None
    return None


def resume(
    out: Path, rounds: int | None = None, join: Sequence[str] = (), from_round: int | None = None, anew: bool = False
) -> tuple[str, list[str]]:
    """Goes on with a run as a new job, from a checkpoint on the server's disk.

    For a job that ended, for one that was lost when the server was killed and started again, and for one that runs
    without a site that has come back: FLARE does not let a restarted site into a running job, so that job is stopped
    first. Only the current round is lost.

    Args:
        out: the run's folder, as `submit` left it.
        rounds: another number of rounds.
        join: sites that take part for the first time.
        from_round: the round to go back to; default: the newest checkpoint's. A job that runs is stopped for it.
        anew: start from the first round, because the server keeps no checkpoint yet.

    Returns:
        the new job's id, and the sites of the run that are not connected: they stay in the run.

    Raises:
        NotYet: too few sites are there, or the job does not stop.
        StillRuns: it runs, and no site waits to come back.
        UserError: there is nothing to resume.
    """
    check_links(out)
    job = load_job(out)
    login, old, tracking = login_of(job), job["job_id"], noted_tracking(job)
    if (out / RESULTS).is_file() and rounds is None and from_round is None:
        raise UserError(f"{out} is finished", remedy="--rounds N goes on for more")
    settings = JobSettings.from_dict(job["settings"] | ({} if rounds is None else {"rounds": rounds}))
    check_rounds_kept(settings, job["settings"]["rounds"])
    if (out / RESULTS).is_file():
        check_rounds(out, read_json(out / RESULTS)["rounds"], job["settings"]["rounds"], settings.rounds, from_round)
    with sessions.connect(login) as session:
        running = sessions.running_at(session)
        here = sorted(running)
        if unknown := [site for site in join if site in job["sites"] or site not in here]:
            raise UserError(
                f"{unknown[0]} cannot join: it takes part already, or is not connected ({', '.join(here)} are)"
            )
        sites = [*job["sites"], *join]
        present = [site for site in sites if site in here]
        if len(present) < settings.min_sites:
            raise NotYet(f"{len(present)} of {len(sites)} sites are connected, min_sites is {settings.min_sites}")
        if events_of(session, old) or sessions.runs(session, old):
            # A restarted site is connected but not in the job, long before the job has noticed.
            if not join and from_round is None and all(old in running[site] for site in present):
                fetch = shlex.join(["fedsm", "fetch", str(out)])
                raise StillRuns(f"job {old} runs and no site waits to come back", remedy=f"`{fetch}` waits for it")
            _stop(session, old)
    ids = [] if anew else [old, *job["earlier"]]
    asked = json.dumps([rounds, sorted(join), from_round, anew])
    token = f"after-{old}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"
    new = submit(
        login, settings, out, present, job["byoc"], job["resources"], ids, sites, from_round, tracking,
        job["supervise"], token,
    )  # fmt: skip
    if (out / RESULTS).is_file():
        (out / RESULTS).replace(out / EARLIER)  # so that they are not taken for the new job's results
    return new, [site for site in sites if site not in present]


def _stop(session: Session, job_id: str) -> None:
    """Aborts a job and waits until FLARE has ended it."""
    session.abort_job(job_id)
    deadline = time.monotonic() + STOP_SECONDS
    while session.get_job_meta(job_id)["status"] in (*WAITING, RUNNING):
        if time.monotonic() > deadline:
            raise NotYet(f"job {job_id} does not stop", remedy="try again, or ask the server's operator")
        time.sleep(POLL_SECONDS)


def load_job(out: Path) -> dict:
    """What `submit` noted about a run.

    Raises:
        UserError: it noted nothing, or an invalid id or name.
    """
    try:
        run = read_json(out / RUN)
        job = {key: run[key] for key in _NOTED} | {"study": run.get("study", DEFAULT_STUDY)}
        ids = [job["job_id"], *job["earlier"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{out} holds no job that was submitted to a federation ({RUN} says none)") from e
    for job_id in ids:
        check_job_id(job_id, str(out / RUN))
    check_site_names(job["sites"], str(out / RUN))
    times = run.get("supervise", 0)
    return (
        job
        | {"supervise": times if is_whole(times, 0, MOST_TIMES) else 0}
        | {key: run.get(key) for key in DEFAULT_TRACKING.note()}
    )


def login_of(job: dict) -> Login:
    """How the run's own user came to the server, from `load_job`."""
    return Login(Path(job["kit"]), str(job["study"]))


def finish(out: Path, watch: Callable[[Session], object] | None = None, patience: float = PATIENCE) -> dict:
    """Follows the job of a run's folder to its end and downloads the result; returns results.json's content.

    Args:
        out: the run's folder.
        watch, patience: see `follow`; also how long the server may be away when the result is to be downloaded.

    Raises:
        JobFailed: it ended without results.
        UserError: the server cannot be reached.
    """
    check_links(out)
    job = load_job(out)
    login, job_id, ended = login_of(job), job["job_id"], None
    while True:
        meta, failure = follow(login, job_id, job["settings"]["rounds"], "round", watch, patience)
        ended = ended or time.monotonic()
        try:
            with download(login, job_id, out / LOG) as workspace:
                if workspace:
                    collect(workspace, out)
            if workspace or meta["status"] != COMPLETED or time.monotonic() - ended > PATIENCE:
                break
        except sessions.NoServer:  # killed between the job's end and now: the result is on its disk
            if time.monotonic() - ended > patience:
                raise
        time.sleep(POLL_SECONDS)
    if (out / RESULTS).is_file():
        return read_json(out / RESULTS)
    reason = failure or reason_of(out / PROGRESS, out / LOG, meta)
    events = progress_of(out) if workspace else []  # else the file is an earlier job's
    raise JobFailed(reason, _can_go_on(events, meta), any(event.get("no_checkpoint") for event in events))


def _can_go_on(events: list[dict], meta: dict) -> bool:
    """Whether a job that failed may go on as it is: what it said itself, or FLARE had ended it for a dead process.

    FLARE's words: EXECUTION_EXCEPTION for a process of a site, ABNORMAL for the job's own at the server, FAILED_TO_RUN
    among others for sites that were killed while the job came to them.
    """
    failed = [event for event in events if event["event"] == "failed"]
    if failed:
        return failed[-1].get("can_go_on") is True
    silent = any("no reply" in str(line) for line in meta.get("job_deploy_detail") or [])
    status = str(meta.get("status"))
    return status in _DEAD_PROCESS or (status == "FINISHED:FAILED_TO_RUN" and silent)


@contextlib.contextmanager
def download(login: Login, job_id: str, log: Path) -> Iterator[Path | None]:
    """Downloads what the server kept of a job: yields its workspace, removed afterwards; None if there is none.

    The server's log goes to `log`.
    """
    scratch = log.with_name("download")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        try:
            with sessions.connect(login) as session:
                workspace = Path(session.download_job_result(job_id, str(scratch))) / "workspace"
        except UserError:
            raise
        except Exception as e:  # a job that was never deployed has none
            log.write_text(f"no result of job {job_id} could be downloaded: {e}\n", encoding="utf-8")
            yield None
            return
        if (workspace / "log.txt").is_file():
            shutil.copyfile(workspace / "log.txt", log)
        yield workspace
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def reason_of(progress: Path, log: Path, meta: dict) -> str:
    """Why a job ended without results: its own reason, or the site that refused it, or FLARE's status."""
    lines = progress.read_text().splitlines() if progress.is_file() else []
    with reading(progress, "ask the server's operator for its log"):
        reasons = [event["reason"] for event in map(parse_json, lines) if event["event"] == "failed"]
    if reasons:
        return reasons[-1]
    status = str(meta.get("status"))
    history = [str(line) for line in meta.get("schedule_history") or []] if "SCHEDULE" in status else []
    written = log.read_text(errors="replace").splitlines() if log.is_file() else []
    errors = [line for line in written if " - ERROR - " in line and _ASKED_TOO_EARLY not in line]
    last = [" ".join(line.split())[:300] for line in errors[-1:]]
    why = refusals(meta) or history[-1:] or last
    return "; ".join([f"FLARE says {status}", *why, f"see {log}"])
