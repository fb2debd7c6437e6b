"""Where a run's checkpoints live on the server's disk.

In the simulator: in the job's own folder, which `fedsm run` collects. On a federation FLARE packs that folder away when
a job ends and leaves it behind when the server is killed; so there they live beside the jobs and outlive them:

    <server's workspace>/fedsm_runs/<job id>/checkpoints/  accepted.jsonl

A new job finds them by the ids of the jobs before it (`job:ID,ID`, the newest first), whoever submits it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from fedsm.errors import UserError
from fedsm.server.checkpoint import FOLDER
from fedsm.task_names import SIMULATED_JOB

RUNS = "fedsm_runs"
_EARLIER_JOBS = "job:"
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


def place_of(root: Path, run_folder: Path, job_id: str) -> Path:
    """The folder for a job's checkpoints; made if it is not there.

    Args:
        root: the server's workspace.
        run_folder: the job's own folder in it.
        job_id: the job's id.
    """
    place = run_folder if job_id == SIMULATED_JOB else root / RUNS / job_id
    place.mkdir(parents=True, exist_ok=True)
    return place


def checkpoints_of(resume_from: str, root: Path) -> Path:
    """The `checkpoints` folder that a job is to go on from: a path, or the first of the jobs named that left one.

    Raises:
        UserError: none of them did.
    """
    if not resume_from.startswith(_EARLIER_JOBS):
        return Path(resume_from)
    ids = resume_from.removeprefix(_EARLIER_JOBS).split(",")
    if bad := [name for name in ids if not _ID.fullmatch(name)]:
        raise UserError(f"{bad[0]!r} is no job's id")
    for name in ids:
        folder = root / RUNS / name / FOLDER
        if list(folder.glob("round_*.json")):
            return folder
    raise UserError(f"the server keeps no checkpoint of job {ids[0]}; start the run again")


def hand_over(place: Path, run_folder: Path) -> None:
    """Puts what is kept into the job's folder, which FLARE hands to whoever downloads the job; links, not copies."""
    if place == run_folder:
        return
    for path in (p for p in place.rglob("*") if p.is_file()):
        target = run_folder / path.relative_to(place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(path, target)


def leave(earlier: Path, place: Path, root: Path) -> None:
    """Removes the folder of an earlier job, once this one has taken over its checkpoint."""
    old = earlier.parent
    if old != place and old.parent == root / RUNS and list((place / FOLDER).glob("round_*.json")):
        shutil.rmtree(old, ignore_errors=True)
