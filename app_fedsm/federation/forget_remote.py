"""`fedsm forget` on a federation: the server's own checkpoint, and the jobs that it stores."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import events_of, follow
from app_fedsm.runs.run_folder import PROGRESS, RUN
from fedsm.core.errors import UserError
from fedsm.core.files import write_json

LOG = "forget.log"


def forget_remotely(run: Path, site: str) -> None:
    """Removes a site from what the server keeps of a run: rewrites the checkpoint and deletes the stored jobs.

    Raises:
        UserError: the run's job still runs, no other site is connected, or the server could not do it.
    """
    from app_fedsm.recipes import ForgetRecipe
    from fedsm.flare.forget_controller import FILE

    run = run.resolve()  # FLARE takes a relative path as one below the kit
    job = remote.load_job(run)
    login, ids = remote.login_of(job), [job["job_id"], *job["earlier"]]
    with sessions.connect(login) as session:
        if events_of(session, ids[0]):
            raise UserError(f"job {ids[0]} of {run} runs", remedy="wait for it or abort it first")
        here = [s for s in sessions.registered(session) if s != site]
    if not here:
        raise UserError(
            "no other site is connected, and FLARE starts no job without one", remedy="try again when one is"
        )
    with tempfile.TemporaryDirectory(dir=run) as staging:
        ForgetRecipe(site=site, run=f"job:{','.join(ids)}", witness=here[0], byoc=job["byoc"]).export(staging)
        with sessions.connect(login) as session:
            forgetting = remote.hand_in(session, Path(staging) / f"forget_{site}")
    meta, failure = follow(login, forgetting, 1, "job")
    with remote.download(login, forgetting, run / LOG) as workspace:
        if not workspace or not (workspace / FILE).is_file():
            progress = workspace / PROGRESS if workspace else Path()
            why = failure or remote.reason_of(progress, run / LOG, meta)
            raise UserError(f"the server did not forget {site}, and nothing was changed here: {why}")
    with sessions.connect(login) as session:
        for job_id in ids:
            with contextlib.suppress(Exception):  # an earlier one may have been deleted before
                session.delete_job(job_id)


def leave_run(run: Path, site: str) -> None:
    """Removes a site from the list of those that a resumed job is sent to."""
    content = json.loads((run / RUN).read_text())
    write_json(run / RUN, content | {"sites": [s for s in content["sites"] if s != site]})
