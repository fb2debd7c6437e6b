"""Files and folders that are written whole or not at all, and that only their owner can read.

What is written goes to a file beside the target first, is forced to the disk, and takes the target's place in one
rename. A reader sees the old content or the new one, never half of it, also after a kill or a power cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PARTIAL = ".partial"  # end of the name of an unfinished file or folder
SHARED_PARTIAL = ".partial-"  # start of that name where several processes may write the same file at once


@contextlib.contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` at the end of the block; removed if the block fails.

    The file has mode 0600 whatever the umask. An older unfinished file is removed first: it could have another mode,
    or be a link.

    Args:
        path: the file to write; folders above it are made.
        shared: several processes may write this file at once; each gets an unfinished file of its own.

    Raises:
        OSError: it cannot be written. An existing file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if shared:
        handle, name = tempfile.mkstemp(prefix=SHARED_PARTIAL, dir=path.parent)
        partial = Path(name)
    else:
        partial = path.with_name(path.name + PARTIAL)
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(handle)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `path` at the end of the block; removed if the block fails.

    Args:
        path: the folder; an existing one is removed at the very end.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, mode=0o700)
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_bytes(path: Path, content: bytes, shared: bool = False) -> None:
    """Writes a file in one rename; see `replacing`."""
    with replacing(path, shared) as partial:
        partial.write_bytes(content)


def write_text(path: Path, content: str, shared: bool = False) -> None:
    """Writes UTF-8 text in one rename; see `replacing`."""
    write_bytes(path, content.encode("utf-8"), shared)


def write_json(path: Path, content: object, shared: bool = False) -> None:
    """Writes JSON in one rename; see `replacing`. It is ASCII: a file's name may hold bytes that are not text."""
    write_text(path, json.dumps(content, indent=1), shared)
