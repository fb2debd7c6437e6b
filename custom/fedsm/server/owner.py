"""Who owns a checkpoint: the user who submitted the job, in the study of that job.

FLARE authenticates who submits and notes it in the job's meta on the server. From that the controller writes
`<server's workspace>/fedsm_runs/<job id>/owner.json`, which no site and no part of a job names or writes. A job may go
on from a checkpoint, remove it, or forget a site in it only if its submitter owns that checkpoint. A project admin may
use any checkpoint of the study, as FLARE's rights say (`download_job: any`). In the simulator there is no owner.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.task_names import DEFAULT_STUDY

FILE = "owner.json"
_ADMIN = "project_admin"


@dataclass(frozen=True)
class Submitter:
    """Who submitted a job, as FLARE authenticated the person, and the job's study."""

    name: str
    org: str
    role: str
    study: str = DEFAULT_STUDY


def write_owner(folder: Path, submitter: Submitter) -> None:
    """Notes who owns a job's folder, readable for the server's user only.

    Raises:
        UserError: another user owns it already.
    """
    try:
        handle = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        if not owns(folder, submitter):
            raise UserError(
                f"job {folder.name}: {folder} is kept for another user", remedy="ask the server's operator"
            ) from None
        return
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(submitter), file)


def owns(folder: Path, submitter: Submitter) -> bool:
    """Whether a folder was made by a job of this user in this study."""
    return _owner(folder) == (submitter.name, submitter.study)


def check_owner(folder: Path, submitter: Submitter) -> None:
    """Refuses a folder that another user's job made, or a job of another study.

    Raises:
        UserError: naming the job and the user who does not own it.
    """
    name, study = _owner(folder) or (None, None)
    if study not in (submitter.study, None):
        raise UserError(f"job {folder.name}: its checkpoint is not of study {submitter.study!r}")
    if submitter.role == _ADMIN or name == submitter.name:
        return
    if name is None:
        raise UserError(
            f"job {folder.name}: the server does not know whose checkpoint this is",
            remedy=f'its operator may write {{"name": "USER"}} to {folder.parent.name}/{folder.name}/{FILE}',
        )
    raise UserError(
        f"job {folder.name}: its checkpoint is not {submitter.name}'s",
        remedy="only the user who submitted that job, or a project admin, may go on from it or forget a site in it",
    )


def _owner(folder: Path) -> tuple[str, str] | None:
    """The owner's name and study; None where the file is missing, a link or not ours."""
    path = folder / FILE
    try:
        if path.is_symlink():
            return None
        owner = json.loads(path.read_text())
        name, study = owner["name"], owner.get("study", DEFAULT_STUDY)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (name, study) if isinstance(name, str) and name and isinstance(study, str) else None
