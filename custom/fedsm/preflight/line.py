"""A line of `fedsm site check`, and the table of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from fedsm.core.text import printable
from fedsm.data.findings import count_levels

_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "drop_whitespace": True}


@dataclass(frozen=True)
class Line:
    """The result of one check.

    Attributes:
        level: PASS, WARN or FAIL.
        topic: what was checked, in one word.
        what: what was found.
        remedy: what to do about it; with every WARN and FAIL.
    """

    level: str
    topic: str
    what: str
    remedy: str = ""


def size_text(count: int) -> str:
    """A number of bytes as a person reads it: 0.3 GB, 12 MB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def format_lines(lines: list[Line], columns: int = 0) -> str:
    """The lines as an aligned table, remedies below what they are for, and the counts.

    Args:
        lines: the results of the checks.
        columns: rows longer than this are wrapped; 0: none is.
    """
    width = max(len(line.topic) for line in lines)
    rows = []
    for line in lines:
        rows.append(f"{line.level}  {line.topic:<{width}}  {printable(line.what)}")
        if line.remedy:
            rows.append(f"{'':{width + 8}}remedy: {printable(line.remedy)}")
    if columns:
        rows = [textwrap.fill(r, columns, subsequent_indent=" " * (width + 8), **_WHOLE_WORDS) for r in rows]
    return "\n".join([*rows, count_levels([line.level for line in lines])])
