"""Files that only their owner can read: what this project writes holds weights, images, names or keys.

The umask is set where a process of ours begins, so that it also covers what libraries and child processes write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsm.core.errors import UserError

_ROOT = 0  # may change everything anyway
_UMASK = 0o077  # folders 0700, files 0600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_private() -> None:
    """From now on, what this process and its children create is closed to group and others."""
    os.umask(_UMASK)


@contextmanager
def private_files() -> Iterator[None]:
    """`keep_private` for a while: a program that calls our commands gets its own umask back."""
    before = os.umask(_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(path: Path) -> None:
    """Takes all rights of group and others from a file, or from a folder and everything in it.

    For what was created with explicit modes, or by an earlier version. The owner's rights stay, so scripts can still
    be started. The folder itself is closed first; symbolic links are not followed.
    """
    _close(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            _close(Path(folder, name))


def check_own_place(path: Path) -> None:
    """Refuses a path below a folder that another account made where everybody may write, such as the temporary folder.

    Its owner could read and change what is written there: keys, and what is run.

    Raises:
        UserError: naming the folder.
    """
    for end in {path.absolute(), path.resolve()}:
        for folder in (*reversed(end.parents), end):
            shared = folder.parent != folder and folder.parent.stat().st_mode & stat.S_IWOTH
            if not os.path.lexists(folder):
                break
            if shared and _owner(folder) not in (os.getuid(), _ROOT):
                raise UserError(f"{folder} belongs to another account", remedy="choose a folder of your own")


def new_file(path: Path) -> Path:
    """Prepares a path for a new file: makes its folder, and removes an older file, which would keep its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def _owner(path: Path) -> int:
    return path.lstat().st_uid


def _close(path: Path) -> None:
    mode = path.lstat().st_mode
    if mode & _OTHERS and not stat.S_ISLNK(mode):
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
