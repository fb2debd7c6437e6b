"""Whose checkpoints are whose: the user who submitted the job.

FLARE authenticates who submits and notes it in the job's meta on the server. Of that the controller writes
`<server's workspace>/fedsm_runs/<job id>/owner.json`, which no site and no part of a job names or writes. A job goes on
from, removes or forgets in a checkpoint of its own submitter only. A project admin may use anybody's, as FLARE's rights
say (`download_job: any`). In the simulator there is no owner.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from fedsm.core.errors import UserError

FILE = "owner.json"
_ADMIN = "project_admin"


@dataclass(frozen=True)
class Submitter:
    """Who submitted a job, as FLARE authenticated the person."""

    name: str
    org: str
    role: str


def write_owner(place: Path, submitter: Submitter) -> None:
    """Notes whose a new place is, readable for the server's user only.

    Raises:
        UserError: it is another's already.
    """
    try:
        handle = os.open(place / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        if not owns(place, submitter):
            raise UserError(f"job {place.name}: {place} is kept for another user; ask the server's operator") from None
        return
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(submitter), file)


def owns(place: Path, submitter: Submitter) -> bool:
    """Whether a place was made by a job of this user."""
    return _owner_name(place) == submitter.name


def check_owner(place: Path, submitter: Submitter) -> None:
    """Refuses a place that another user's job made.

    Raises:
        UserError: naming the job and whose it is not.
    """
    if submitter.role == _ADMIN or owns(place, submitter):
        return
    if _owner_name(place) is None:
        raise UserError(
            f"job {place.name}: the server does not know whose checkpoint this is; its operator may write"
            f' {{"name": "USER"}} to {place.parent.name}/{place.name}/{FILE}'
        )
    raise UserError(
        f"job {place.name}: its checkpoint is not {submitter.name}'s; only the user who submitted that job, or a"
        " project admin, may go on from it or forget a site in it"
    )


def _owner_name(place: Path) -> str | None:
    """The owner's name; None where the file is missing, a link or not ours."""
    path = place / FILE
    try:
        if path.is_symlink():
            return None
        name = json.loads(path.read_text())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name else None
