"""Where a run's checkpoints live on the server's disk.

In the simulator they are in the job's own folder, which `fedsm run` collects. On a federation FLARE packs that folder
away when a job ends, and leaves it behind when the server is killed. There they are kept outside the jobs' folders:

    <server's workspace>/fedsm_runs/<job id>/checkpoints/  accepted.jsonl  owner.json

A new job of the same user finds them by the ids of the jobs before it (`job:ID,ID`, the newest first). On a federation
that is the only way: a path in a job's configuration is refused, and no link leads out of a job's folder.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.names import below, check_job_id
from fedsm.server.checkpoint import FOLDER
from fedsm.server.owner import FILE as OWNER
from fedsm.server.owner import Submitter, check_owner, owns, write_owner

RUNS = "fedsm_runs"
_EARLIER_JOBS = "job:"


class NoCheckpoint(UserError):
    """A job was to go on from jobs that left no checkpoint: they ended before they had registered the sites."""


def checkpoint_dir(root: Path, run_folder: Path, job_id: str, submitter: Submitter | None) -> Path:
    """The folder for a job's checkpoints; made if it is not there.

    Args:
        root: the server's workspace.
        run_folder: the job's own folder in it.
        job_id: the job's id.
        submitter: who submitted the job; None in the simulator.

    Raises:
        UserError: the folder is another user's, or a link.
    """
    if submitter is None:
        run_folder.mkdir(parents=True, exist_ok=True)
        return run_folder
    folder = _kept(root, job_id)
    folder.mkdir(parents=True, exist_ok=True)
    write_owner(folder, submitter)
    return folder


def checkpoints_of(resume_from: str, root: Path, submitter: Submitter | None) -> Path:
    """The `checkpoints` folder to go on from: that of the first of the named jobs that left a checkpoint.

    Args:
        resume_from: `job:` and the ids; in the simulator also a path.
        root: the server's workspace.
        submitter: who asks; None in the simulator.

    Raises:
        NoCheckpoint: none of them did.
        UserError: it is another user's, or a path where only ids are accepted.
    """
    if not resume_from.startswith(_EARLIER_JOBS):
        if submitter is not None:
            raise UserError("a federation's job names earlier jobs as job:ID,ID, never a path on the server")
        return Path(resume_from)
    ids = [check_job_id(name, "resume") for name in resume_from.removeprefix(_EARLIER_JOBS).split(",")]
    for name in ids:
        folder = _kept(root, name)
        if not list((folder / FOLDER).glob("round_*.json")):
            continue
        if submitter is not None:
            check_owner(folder, submitter)
        below(folder, folder / FOLDER)
        return folder / FOLDER
    raise NoCheckpoint(f"the server keeps no checkpoint of job {ids[0]}", remedy="start the run again")


def hand_over(folder: Path, run_folder: Path) -> None:
    """Links the kept files into the job's folder, so that they are part of what a user downloads from FLARE."""
    if folder == run_folder:
        return
    for path in (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and p.name != OWNER):
        target = run_folder / path.relative_to(folder)
        below(run_folder, target.parent / "file")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(path, target)


def remove_earlier(earlier: Path, folder: Path, root: Path, submitter: Submitter | None) -> None:
    """Removes the folder of an earlier job of the same user, once this one has taken over its checkpoint."""
    old = earlier.parent
    if submitter is None or old.parent != root / RUNS or old == folder:
        return
    if owns(old, submitter) and list((folder / FOLDER).glob("round_*.json")):
        shutil.rmtree(_kept(root, old.name), ignore_errors=True)


def _kept(root: Path, job_id: str) -> Path:
    """The folder in which a job's checkpoints stay after its end.

    Raises:
        UserError: not the id of a job, or the folder is a link.
    """
    folder = root / RUNS / check_job_id(job_id, "the server's workspace")
    if folder.is_symlink():
        raise UserError(f"job {job_id}: {folder} is a link", remedy="the server's operator should remove it")
    return folder
