"""Text from a file system or a message, made safe to print and to open in a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from typing import IO

_MOST_CHARACTERS = 300
# What makes a spreadsheet compute a cell; full-width forms too, which some versions take for the plain ones.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def printable(text: object) -> str:
    """Text without control characters, which could change the terminal: each becomes a `?`.

    Line breaks, marks that change the direction of writing, and bytes of file names that are not text count too.
    """
    return "".join(c if c.isprintable() else "?" for c in str(text))


def one_line(text: object, most: int = _MOST_CHARACTERS) -> str:
    """Text as a short line: whatever cannot be printed, line breaks too, becomes a blank.

    Args:
        text: for example a reason, parts of which may be a site's own words.
        most: characters that are kept.
    """
    shown = "".join(c if c.isprintable() else " " for c in str(text)[: 10 * most])
    return " ".join(shown.split())[:most]


def csv_cell(value: object) -> str:
    """A cell that a spreadsheet shows and does not compute: what looks like a formula gets a quote in front.

    Numbers stay numbers, negative ones too.
    """
    text, shown = str(value), printable(value)
    if not text.lstrip().startswith(_FORMULA) and text[:1] not in ("\t", "\r", "\n"):
        return shown
    try:
        float(text)
    except ValueError:
        return f"'{shown}"
    return shown


class CsvTable:
    """Writes CSV whose cells are safe; the only way to write CSV here.

    Args:
        file: where to; opened with `newline=""`.
    """

    def __init__(self, file: IO[str]):
        self._writer = csv.writer(file, lineterminator="\n")

    def write(self, *rows: Iterable[object]) -> None:
        """Adds rows."""
        for row in rows:
            self._writer.writerow([csv_cell(cell) for cell in row])
