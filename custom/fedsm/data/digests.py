"""A short key for the content of a site's files; a file that did not change is not read again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedsm.core.files import write_text
from fedsm.data.site_folder import Pair

_GRAIN = 2.0  # seconds: the coarsest resolution of a file system's clock (FAT)


def content_key(book: Path, pairs: list[Pair], shaping: list | dict, workers: int = 1) -> str:
    """A digest of the files' names and content and of `shaping`. The order matters: it is that of rows and channels.

    Args:
        book: JSON file with known digests: a file whose size, times and inode are as noted there is not read again.
        pairs: the files.
        shaping: plain values that belong to the key.
        workers: threads that read.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        known = json.loads(book.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    files = [path for pair in pairs for path in (pair.image, pair.mask)]
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda path: _digest(path, known.get(str(path.resolve()))), files))
    # A file written just now could change again within the clock's resolution: it is read again the next time.
    young = (time.time() - _GRAIN) * 1e9
    kept = {str(path.resolve()): line for path, line in zip(files, found, strict=True) if max(line[1:3]) < young}
    if kept != known:
        with contextlib.suppress(OSError):
            write_text(book, json.dumps(kept), shared=True)
    content = [[path.name, line[0], line[-1]] for path, line in zip(files, found, strict=True)]
    return hashlib.sha256(json.dumps([shaping, content]).encode()).hexdigest()[:32]


def _digest(path: Path, known: list | None) -> list:
    """[size, mtime, ctime, inode, SHA-256] of a file."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise OSError(f"{path} is not a regular file")  # reading a pipe would wait for ever
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    if isinstance(known, list) and known[:-1] == stamp:
        return known
    with path.open("rb") as f:
        return [*stamp, hashlib.file_digest(f, "sha256").hexdigest()]
