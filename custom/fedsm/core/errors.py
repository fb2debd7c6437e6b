"""The one exception that a person is meant to read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from os import PathLike
from typing import Self

_HINT = "bad input at the site: see the site's own log"


class UserError(Exception):
    """Bad input. `str(error)` is one line, `site 'a': FILE, line 3: what is wrong; what to do`; code reads the fields.

    Args:
        message: what is wrong, for the person who owns the input.
        site: the site's name, where the input is a site's.
        file: the file or folder it is about.
        line: the line in that file, counted from 1.
        remedy: what to do about it.
        public: what may leave a site: never a file name, a path or a value of the site's own. Default: a generic hint.
    """

    def __init__(
        self,
        message: str,
        *,
        site: str | None = None,
        file: str | PathLike[str] | None = None,
        line: int | None = None,
        remedy: str | None = None,
        public: str = _HINT,
    ):
        self.message = message
        self.site = site
        self.file = None if file is None else str(file)
        self.line = line
        self.remedy = remedy
        self.public = public
        super().__init__(message)  # not the whole line: pickle calls the class with it, and restores the fields

    def __str__(self) -> str:
        site = f"site {self.site!r}: " if self.site else ""
        return f"{site}{self.what}{f'; {self.remedy}' if self.remedy else ''}"

    @property
    def what(self) -> str:
        """File, line and message, for tables that have columns of their own for the site and the remedy."""
        if not self.file:
            return self.message
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.message}"

    def within(self, where: str) -> Self:
        """The same error with `where` before its message; the other fields stay."""
        return type(self)(
            f"{where}: {self.message}", site=self.site, file=self.file, line=self.line, remedy=self.remedy,
            public=self.public,
        )  # fmt: skip


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """For scripts: bad input ends them with one line and exit code 2, not with a traceback."""
    try:
        yield
    except UserError as e:
        print(e, file=sys.stderr)
        raise SystemExit(2) from e
