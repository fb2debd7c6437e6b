"""Which site or patient a case is of: a column of a table, or a group of a pattern."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.names import is_site_name

SITE, PATIENT = "site", "patient"
CASE_COLUMNS = ("case", "participant_id")  # what a table calls a case: ours, and BIDS' word


@dataclass(frozen=True)
class Rule:
    """How the site (or the patient) of a case is found.

    Attributes:
        what: `site` or `patient`.
        pattern: finds it in a case's name; None: the table says it.
        table: case -> site or patient.
        source: the pattern, or the table and its column, as they are told.
    """

    what: str
    pattern: re.Pattern[str] | None
    table: Mapping[str, str]
    source: str

    def of(self, names: Sequence[str]) -> str:
        """The site or patient of a case.

        Args:
            names: what the case is called, its own name first, then its subject.

        Raises:
            UserError: the rule does not say, or a site's name is none.
        """
        found = None
        if self.pattern:
            match = self.pattern.search(names[0])
            found = match and match[self.what]
        else:
            found = next((self.table[name] for name in names if name in self.table), None)
        if not found:
            raise UserError(
                f"{self.source} does not say the {self.what} of {shown(names[0])}", remedy="complete or correct it"
            )
        if self.what == SITE and not is_site_name(found):
            raise UserError(
                f"{self.source} gives {shown(names[0])} the site {shown(found)}",
                remedy="a site's name has letters, digits, '-' and '_' only, 64 at most",
            )
        return found


def read_rule(text: str, what: str, dataset: Path) -> Rule:
    """A rule from the command line.

    Args:
        text: `FILE.csv:COLUMN`, or a regular expression with a group that is called as `what`. A file is looked for in
            the dataset, then in the current folder; `.tsv` is separated by tabs.
        what: `site` or `patient`.
        dataset: the dataset's folder.

    Raises:
        UserError: neither, or the table cannot be used.
    """
    option = f"--{what}-by"
    if f"(?P<{what}>" in text:
        try:
            return Rule(what, re.compile(text), {}, f"{option} {shown(text)}")
        except re.error as e:
            raise UserError(f"{option}: {shown(text)} is no regular expression: {e}") from e
    name, colon, column = text.rpartition(":")
    if not colon or not name or not column:
        raise UserError(
            f"{option}: {shown(text)} is neither a table nor a pattern",
            remedy=f"give FILE.csv:COLUMN, or a regular expression with the group (?P<{what}>...)",
        )
    file = next((path for path in (dataset / name, Path(name)) if path.is_file()), None)
    if file is None:
        raise UserError(f"{option}: there is no file {name} in {dataset}, nor in the current folder")
    return Rule(what, None, _column(file, column), f"column {shown(column)} of {file}")


def _column(file: Path, column: str) -> dict[str, str]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as f:
            reader = csv.DictReader(f, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise UserError(f"cannot be read: {e}", file=file) from e
    key = next((name for name in CASE_COLUMNS if name in columns), None)
    if key is None or column not in columns:
        missing = f"the column {column!r}" if key else f"a column {' or '.join(map(repr, CASE_COLUMNS))}"
        raise UserError(f"lacks {missing}", file=file, remedy=f"it has {shown(', '.join(columns))}")
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        case, value = ((row[name] or "").strip() for name in (key, column))
        if case and found.setdefault(case, value) != value:
            raise UserError(f"gives {shown(case)} a second {column}", file=file, line=number)
    return found
