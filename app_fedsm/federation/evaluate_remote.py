"""`fedsm evaluate --env poc|prod`, and `fedsm privacy audit` alike: the super model goes to the sites, only their
reports come back."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import follow
from app_fedsm.federation.session import Login
from app_fedsm.runs.run_folder import PROGRESS
from fedsm.core.errors import UserError
from fedsm.core.task_names import AUDIT, SCORE
from fedsm.data.cases import ALL
from fedsm.super_model.artefact import SuperModelFiles

LOG = "evaluation.log"


def evaluate_remotely(
    login: Login, folder: Path, model: SuperModelFiles, sites: list[str], part: str, seed: int, byoc: bool, out: Path,
    task: str = SCORE,
) -> dict:  # fmt: skip
    """Runs an evaluation as a job and follows it.

    Args:
        login: the user's kit and study.
        folder: the super model's folder.
        model: its content.
        sites: the sites that evaluate.
        part: which of their images.
        seed: of the bootstrap.
        byoc: carry the code inside the job.
        out: where the server's log goes.
        task: what the sites do: score the models, or attack them.

    Returns:
        the content of evaluation.json, or `sites` with their reports; `missing` names the sites without a report.

    Raises:
        JobFailed: the job ended without one.
        UserError: a site is not connected, or took no part in training and has no such part.
    """
    from app_fedsm.recipes import EvaluationRecipe
    from fedsm.evaluation.evaluate import FILE
    from fedsm.evaluation.membership import SITES_FILE

    file, verb = {SCORE: (FILE, "evaluate"), AUDIT: (SITES_FILE, "audit")}[task]
    strange = [site for site in sites if site not in model.manifest["sites"]]
    if strange and part != ALL:
        raise UserError(f"took no part in training and has no {part} images", site=strange[0], remedy="use --part all")
    remote.check_connected(login, sites)
    out = out.resolve()  # FLARE takes a relative path as one below the kit
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as staging:
        name = f"{verb}_{model.settings.task.name}"
        recipe = EvaluationRecipe(name, model=folder, sites=sites, part=part, seed=seed, byoc=byoc, task=task)
        recipe.export(staging)
        with sessions.connect(login) as session:
            job_id = remote.hand_in(session, Path(staging) / name)
    try:
        meta, failure = follow(login, job_id, len(sites), "site")
    except KeyboardInterrupt:
        with sessions.connect(login) as session:
            session.abort_job(job_id)
        raise
    log = out / LOG
    with remote.download(login, job_id, log) as workspace:
        if workspace and (workspace / file).is_file():
            return json.loads((workspace / file).read_text())
        why = failure or remote.reason_of(workspace / PROGRESS if workspace else Path(), log, meta)
    raise remote.JobFailed(why)
