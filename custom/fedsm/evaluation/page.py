"""The HTML of a report: one file, no request leaves it; light and dark, screen and paper."""

from __future__ import annotations

import html
from collections.abc import Collection
from dataclasses import dataclass, field

_CSS = """
:root { color-scheme: light dark; --ink: #1d2127; --quiet: #5b6470; --paper: #ffffff; --line: #d5dae1;
  --soft: #f3f5f8; --link: #005a8e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --quiet: #a2abb8; --paper: #16191e; --line: #363c46;
  --soft: #1f242b; --link: #7cc4f5; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { max-width: 46rem; margin: .35rem 0 .75rem; } .quiet, figcaption { color: var(--quiet); }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0; font-size: .92rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem 1.5rem;
  align-items: start; }
.figures.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-size: .85rem; margin-top: .15rem; }
figure svg, figure img { display: block; max-width: 100%; height: auto; }
figure svg text { font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif !important; }
.table { margin: .9rem 0 1.2rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .87rem; font-variant-numeric: tabular-nums; }
.about { color: var(--quiet); font-size: .85rem; margin: 0 0 .2rem; } .scroll { overflow-x: auto; }
th, td { padding: .28rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--line);
  vertical-align: bottom; } tbody th { font-weight: 400;
  white-space: normal; min-width: 8.5rem; position: sticky; left: 0; background: var(--paper); }
tbody tr:hover { background: var(--soft); } td b { font-weight: 700; }
button { font: inherit; font-size: .78rem; color: var(--quiet); background: none; border: 1px solid var(--line);
  border-radius: .3rem; padding: 0 .45rem; margin-left: .6rem; cursor: pointer; } button:hover { color: var(--ink); }
.absent { border-left: 3px solid var(--line); padding-left: .75rem; color: var(--quiet); }
@media print { :root { --ink: #000; --quiet: #444; --paper: #fff; --line: #bbb; --soft: #fff; }
  body { max-width: none; padding: 0; font-size: 10.5pt; } nav, button { display: none; }
  figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } .scroll { overflow: visible; }
  .figures, .figures.wide { grid-template-columns: 1fr 1fr; }
  table { font-size: 8pt; } th, td { padding: .15rem .4rem; } }
"""
# Selects and copies: works in a file that was opened from disk, where the clipboard interface may be closed.
_SCRIPT = """
for (const button of document.querySelectorAll("button[data-copy]")) button.addEventListener("click", () => {
  const range = document.createRange(), selection = getSelection();
  range.selectNode(button.closest(".table").querySelector("table"));
  selection.removeAllRanges(); selection.addRange(range);
  button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
});
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass
class Section:
    """A heading and what stands under it."""

    title: str
    parts: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def absent(reason: str) -> str:
    """Says why something is not shown."""
    return paragraph(f"Not shown: {reason}.", "absent")


def figures(items: list[str], wide: bool = False) -> str:
    """Figures beside each other where there is room."""
    return f'<div class="figures{" wide" if wide else ""}">{"".join(items)}</div>'


def heading(text: str) -> str:
    return f"<h3>{html.escape(text)}</h3>"


def table(head: list[str], rows: list[list[str]], caption: str, bold: Collection[tuple[int, int]] = frozenset()) -> str:
    """A table of plain text that can be copied; `bold` holds (row, column) of cells."""

    def cell(text: str, i: int, j: int) -> str:
        inner = f"<b>{html.escape(text)}</b>" if (i, j) in bold else html.escape(text)
        return f'<th scope="row">{inner}</th>' if j == 0 else f"<td>{inner}</td>"

    top = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in head)
    body = "".join(f"<tr>{''.join(cell(t, i, j) for j, t in enumerate(row))}</tr>" for i, row in enumerate(rows))
    button = '<button type="button" data-copy>copy</button>'
    return (
        f'<div class="table"><p class="about">{html.escape(caption)} {button}</p><div class="scroll">'
        f'<table aria-label="{html.escape(caption)}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></div>"
    )


def page(title: str, subtitle: str, sections: list[Section]) -> str:
    """The whole file."""
    links = "".join(f'<a href="#{s.anchor}">{html.escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section><h2 id="{s.anchor}">{html.escape(s.title)}</h2>{"".join(s.parts)}</section>' for s in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html.escape(title)}</title><link rel="icon" href="data:,"><style>{_CSS}</style></head><body>'
        f"<header><h1>{html.escape(title)}</h1>{paragraph(subtitle, 'quiet')}</header><nav>{links}</nav>"
        f"<main>{body}</main><script>{_SCRIPT}</script></body></html>\n"
    )
