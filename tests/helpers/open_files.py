"""What a person with another account on the machine could read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def open_umask() -> Iterator[None]:
    """The least careful umask there is: whoever does not ask for more gets 0666 and 0777."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(*roots: Path) -> list[str]:
    """Every file and folder with a right for group or others: the roots and all below them."""
    found = []
    for root in roots:
        assert root.exists(), root
        for path in (root, *root.rglob("*")):
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found.append(f"{stat.filemode(mode)} {path}")
    return found
