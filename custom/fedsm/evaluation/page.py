"""The HTML of a report: one file that loads nothing else; for light and dark screens, and for paper.

The page is `templates/report.html`; its style and script are put into it from the files beside it. Whatever is not
`Markup` is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jinja2
from markupsafe import Markup


@dataclass
class Section:
    """A heading and what follows it."""

    title: str
    parts: list[Markup] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def paragraph(text: str) -> Markup:
    """A paragraph of plain text."""
    return Markup("<p>{}</p>").format(text)


def absent(reason: str) -> Markup:
    """Says why something is not shown."""
    return Markup('<p class="absent">Not shown: {}.</p>').format(reason)


def warning(text: str) -> Markup:
    """Says what a reader must not overlook."""
    return Markup('<p class="warning">{}.</p>').format(text)


def figures(items: list[Markup], wide: bool = False) -> Markup:
    """Figures beside each other where there is room."""
    return Markup('<div class="figures{}">{}</div>').format(" wide" if wide else "", Markup("").join(items))


def glossary(words: dict[str, str]) -> Markup:
    """Words and what they mean."""
    entry = Markup("<dt>{}</dt><dd>{}</dd>")
    return Markup('<dl class="words">{}</dl>').format(Markup("").join(entry.format(*pair) for pair in words.items()))


def bullets(items: list[str]) -> Markup:
    """A list of plain texts."""
    return Markup("<ul>{}</ul>").format(Markup("").join(Markup("<li>{}</li>").format(item) for item in items))


def details(title: str, content: Markup) -> Markup:
    """Something that is shown when it is asked for."""
    return Markup("<details><summary>{}</summary>{}</details>").format(title, content)


def page(title: str, subtitle: str, sections: list[Section], patients: bool) -> str:
    """The whole file.

    Args:
        title: its heading.
        subtitle: a line below.
        sections: in their order; one without parts is left out.
        patients: whether it shows images of patients; its first line then says so.
    """
    loader = jinja2.PackageLoader("fedsm.evaluation")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("report.html").render(
        title=title, subtitle=subtitle, sections=sections, patients=patients
    )
