"""Tables of text: plain, Markdown, HTML and CSV. Cells may come from anywhere; each form makes them safe to show.

All take the head and the rows as lists of text. The first column is aligned to the left, the others to the right.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

import jinja2
from markupsafe import Markup
from tabulate import tabulate

from fedsm.core.text import CsvTable, printable

Rows = Sequence[Sequence[str]]

_HTML = """<div class="table"><p class="about">{{ caption }} <button type="button" data-copy>copy</button></p>\
<div class="scroll"><table aria-label="{{ caption }}"><thead><tr>\
{% for title in head %}<th scope="col">{{ title }}</th>{% endfor %}</tr></thead><tbody>\
{% for row in rows %}{% set i = loop.index0 %}<tr>\
{% for cell in row %}{% set text %}{% if (i, loop.index0) in bold %}<b>{{ cell }}</b>{% else %}{{ cell }}{% endif %}\
{% endset %}{% if loop.first %}<th scope="row">{{ text }}</th>{% else %}<td>{{ text }}</td>{% endif %}{% endfor %}</tr>\
{% endfor %}</tbody></table></div></div>"""


def plain_table(head: Sequence[str], rows: Rows) -> str:
    """Columns of text for a terminal."""
    return _aligned(head, rows, "simple", printable)


def markdown_table(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table whose columns also line up as plain text."""
    return _aligned(head, rows, "pipe", lambda cell: printable(cell).replace("|", "\\|"))


def html_table(head: Sequence[str], rows: Rows, caption: str, bold: Collection[tuple[int, int]] = ()) -> Markup:
    """An HTML table that can be copied; `bold` holds (row, column) of cells."""
    return Markup(_template().render(head=head, rows=rows, caption=caption, bold=bold))


def csv_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """CSV for other programs; see `CsvTable`."""
    text = io.StringIO()
    CsvTable(text).write(head, *rows)
    return text.getvalue()


def _aligned(head: Sequence[str], rows: Rows, form: str, clean: Callable[[object], str]) -> str:
    cells = [[clean(cell) for cell in row] for row in (head, *rows)]
    aligned = ("left", *["right"] * (len(head) - 1))
    # Numbers stay as they are written: tabulate would take 0.50 for 0.5.
    text = tabulate(cells[1:], cells[0], form, disable_numparse=True, colalign=aligned if rows else None)
    return "\n".join(line.rstrip() for line in text.splitlines())


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_HTML)
