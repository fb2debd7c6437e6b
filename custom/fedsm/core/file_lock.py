"""Locks between processes, which the system takes from a process that dies."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(path: Path, site: str) -> Iterator[bool]:
    """Waits for the lock, which the system takes from a process that dies. Yields whether we have it."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("a"))
            if not try_lock(file, shared=False):
                log.info("site %r waits for another process, which is at work in %s", site, path.parent)
                fcntl.flock(file, fcntl.LOCK_EX)
            have_lock = True
        except OSError:
            have_lock = False
        yield have_lock


def try_lock(file: IO[Any], shared: bool) -> bool:
    """Locks a file unless another holds it.

    Raises:
        OSError: there are no locks here.
    """
    if fcntl is None:
        raise OSError("no locks on this system")
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
