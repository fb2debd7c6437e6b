"""`--format json`: one JSON document on stdout, everything for people on stderr.

The document has the keys of `nvflare --format json`: `schema_version`, `status`, `exit_code` and `data`. Ours adds
`command`, and `error` with the fields of a `UserError`. `docs/reference/json.md` describes it, from
`app_fedsm/cli/documents.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from fedsm.core.described import Described

SCHEMA_VERSION = "1"  # another one when a key goes, or gets another meaning; new keys do not change it
TXT, JSON = "txt", "json"
OK, ERROR = "ok", "error"
# Codes of errors; those that FLARE has, too, are spelt as there.
BAD_INPUT, INVALID_ARGS, JOB_FAILED = "BAD_INPUT", "INVALID_ARGS", "JOB_FAILED"
INTERRUPTED, INTERNAL_ERROR = "INTERRUPTED", "INTERNAL_ERROR"


@dataclass(frozen=True)
class Problem:
    """Why a command did not do what it was asked for; see `UserError` for the fields."""

    code: str
    message: str
    site: str | None = None
    file: str | None = None
    line: int | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """The problem that an exception stands for."""
        if isinstance(error, UserError):
            return cls(BAD_INPUT, error.message, error.site, error.file, error.line, error.remedy)
        if isinstance(error, OSError):
            return cls(BAD_INPUT, error.strerror or str(error), file=str(error.filename) if error.filename else None)
        if isinstance(error, KeyboardInterrupt):
            return cls(INTERRUPTED, "stopped")
        return cls(INTERNAL_ERROR, f"{type(error).__name__}: {error}", remedy="please report it, with what stderr says")


@dataclass(frozen=True)
class Result:
    """How a command ended.

    Attributes:
        exit_code: of the process.
        data: what it found or made.
        error: why it failed; what people read about it was printed.
    """

    exit_code: int
    data: Described | None = None
    error: Problem | None = None


def add_format(parser: argparse.ArgumentParser) -> None:
    """Adds `--format` to a command that returns a `Result`."""
    parser.add_argument(
        "--format", choices=(TXT, JSON), default=TXT,
        help=f"{JSON}: one JSON document on stdout, all text on stderr (default: {TXT})",
    )  # fmt: skip


def asks_for_json(words: Sequence[str]) -> bool:
    """Whether a command line that could not be parsed asks for JSON."""
    return f"--format={JSON}" in words or ("--format", JSON) in zip(words, words[1:], strict=False)


class Output:
    """Where a command's document goes.

    Args:
        wanted: whether there is to be one.
        command: as it is typed, `fedsm data check`.
    """

    def __init__(self, wanted: bool, command: str):
        self._wanted = wanted
        self._command = command
        self._stdout = sys.stdout

    @contextlib.contextmanager
    def for_people(self) -> Iterator[None]:
        """What is printed meanwhile goes to stderr where stdout is for the document."""
        if not self._wanted:
            yield
            return
        with contextlib.redirect_stdout(sys.stderr):
            yield

    def end(self, result: Result) -> int:
        """Writes the document, if there is to be one; returns the exit code."""
        if self._wanted:
            document: dict[str, Any] = {
                "schema_version": SCHEMA_VERSION,
                "command": self._command,
                "status": ERROR if result.error else OK,
                "exit_code": result.exit_code,
                "data": result.data.plain() if result.data else None,
                "error": asdict(result.error) if result.error else None,
            }
            self._stdout.write(json.dumps(_valid(document), allow_nan=False) + "\n")
            self._stdout.flush()
        return result.exit_code


def _valid(value: Any) -> Any:
    """The value without what JSON cannot say: NaN and infinity become null, bytes of names that are not text a `?`."""
    if isinstance(value, dict):
        return {_valid(key): _valid(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_valid(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
