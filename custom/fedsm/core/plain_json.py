"""JSON that comes from others: a downloaded run or super model."""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.text import one_line

_MOST_BYTES = 512 * 1024**2  # a run of thousands of rounds and a hundred sites writes less
# What code that reads plain values of the wrong shape raises.
_WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration, ArithmeticError, RecursionError)


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: no JSON, nested too deeply, or too large.
    """
    found = path.stat()
    if stat.S_ISFIFO(found.st_mode):
        raise ValueError("it is a pipe")  # which nobody may ever write to
    if found.st_size > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return parse_json(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def reading(what: object, remedy: str) -> Iterator[None]:
    """Turns errors from plain values of the wrong kind, in the block, into one line that names the file.

    Args:
        what: the file, or a description of it.
        remedy: what a person can do about it.

    Raises:
        UserError: a value is missing or of the wrong kind.
    """
    try:
        yield
    except _WRONG as e:
        reason = one_line(f"{type(e).__name__}: {e}", 120)
        raise UserError(f"{what} is damaged, or was changed by hand ({reason})", remedy=remedy) from e
