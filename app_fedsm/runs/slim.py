"""Drops from a finished run what only a resume needs: checkpoints, the sites' optimizers, caches, FLARE's workspace.

What predict, evaluate and report need stays: the super model, the results, the log, and each site's split.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from app_fedsm.runs.run_folder import RESULTS, RUN, SLIM, check_links
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.plain_json import read_json
from fedsm.server.checkpoint import FOLDER

_FOLDERS = (FOLDER, f"{FOLDER}.earlier", "workspace", "cache")


def spare(out: Path) -> list[Path]:
    """The paths in a run's folder that only a resume needs."""
    folders = [out / name for name in _FOLDERS if (out / name).is_dir()]
    return [*folders, *sorted((out / "site_state").rglob("round_*.safetensors"))]


def total_size(paths: Iterable[Path]) -> int:
    """Bytes on the disk of files and of all files in folders; links are not followed."""
    return sum(_used(path) for path in paths)


def _used(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_blocks * 512
    with os.scandir(path) as entries:
        return sum(_used(Path(entry.path)) for entry in entries)


def make_slim(out: Path) -> int:
    """Removes what only a resume needs; returns how many bytes that freed.

    Raises:
        UserError: the run has not finished, or its folder holds links.
    """
    if not (out / RESULTS).is_file():
        raise UserError(f"{out} holds no finished run ({RESULTS} is missing): what is in it is needed to go on")
    check_links(out)
    found = spare(out)
    size = total_size(found)
    run = read_json(out / RUN)
    if out / FOLDER in found and "job_id" not in run:  # a federation's run goes on from the server's own checkpoints
        write_json(out / RUN, run | {SLIM: True})
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return size
