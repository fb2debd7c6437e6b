"""The folder on the server's disk that holds what the sites send until it is read.

    <server's workspace>/fedsm_incoming/.lock
    <server's workspace>/fedsm_incoming/<job id>_xxxx/      removed at the job's end
    <server's workspace>/fedsm_incoming/<job id>_xxxx.lock  held by the job's process while it lives

Not in the system's temporary folder, and not in the job's own, which FLARE packs for whoever downloads the job. A
process that is killed leaves its folder behind and loses its lock, so the next job on this server removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedsm.core.private_files import close_to_others

FOLDER = "fedsm_incoming"
log = logging.getLogger(__name__)


@contextlib.contextmanager
def incoming_folder(root: Path, job_id: str) -> Iterator[Path]:
    """A new folder, for its owner alone, that is removed at the end; those of killed jobs are removed first.

    Args:
        root: the server's workspace.
        job_id: names it.
    """
    with contextlib.ExitStack() as stack:
        with _locked(root) as above:
            _sweep(above)
            folder = Path(tempfile.mkdtemp(prefix=f"{job_id}_", dir=above))
            lock = stack.enter_context(_lock_of(folder).open("w"))
            _take(lock)
        stack.callback(_remove, folder)
        yield folder


def sweep_incoming(root: Path) -> None:
    """Removes what killed jobs left. Called when any job of ours starts on a server; it never stops a job."""
    with contextlib.suppress(OSError), _locked(root) as above:
        _sweep(above)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[Path]:
    """Keeps jobs that start at the same time from taking each other's new folder for an abandoned one."""
    above = root / FOLDER
    above.mkdir(parents=True, exist_ok=True)
    close_to_others(above)
    with (above / ".lock").open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield above


def _sweep(above: Path) -> None:
    for folder in above.glob("*/"):
        with contextlib.suppress(OSError), _lock_of(folder).open("a") as lock:
            if _take(lock):
                log.warning("removing %s, which a killed job left", folder)
                _remove(folder)


def _take(lock: IO) -> bool:
    """Locks a file; False where another process holds it, or where the file system has no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        _lock_of(folder).unlink(missing_ok=True)
