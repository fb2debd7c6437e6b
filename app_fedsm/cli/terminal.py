"""Cleans what `fedsm` prints: names of files, sites and errors come from outside and may hold control characters."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import IO, Any

from fedsm.core.text import printable

_BREAKS = re.compile(r"([\n\t])")
_BAR_MOVES = re.compile(r"(\x1b\[A|[\n\r\t])")  # tqdm's own: up a line, back to its start


class _CleanStream:
    """A text stream that passes on what can be printed; everything else becomes a `?`.

    Args:
        stream: where to.
        kept: what passes besides, as the one group of a pattern.
    """

    def __init__(self, stream: IO[str], kept: re.Pattern):
        self._stream = stream
        self._kept = kept

    def write(self, text: str) -> int:
        parts = self._kept.split(text)  # every second one is what the pattern found
        self._stream.write("".join(part if i % 2 else printable(part) for i, part in enumerate(parts)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def clean_output() -> Iterator[None]:
    """Removes escape sequences from all that a command prints, on stdout and stderr, while it runs.

    Bars on stderr move the cursor, so code that puts a name into a bar makes it printable first (`fedsm.core.text`).
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _CleanStream(sys.stdout, _BREAKS), _CleanStream(sys.stderr, _BAR_MOVES)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
