"""The patient of each file: from `patients.csv`, a pattern, or the file's own name."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.data.readers import is_supported
from fedsm.data.readers import stem as stem_of

FILE_NAME = "patients.csv"


def patients_of(folder: Path, stems: list[str], pattern: str | None, site: str) -> list[str]:
    """The patient of each file.

    Args:
        folder: the site's folder. A `patients.csv` in it wins: columns `file` (with or without ending) and `patient`.
        stems: the files' stems.
        pattern: a regular expression that finds the patient in a stem, as its first group or its whole match. None:
            every file is a patient of its own.
        site: named in errors.

    Raises:
        UserError: a file that the list or the pattern does not cover.
    """
    table = folder / FILE_NAME
    if table.is_file():
        listed = _read(table, site)
        known = {stem_of(Path(f)): p for f, p in listed.items() if is_supported(Path(f))} | listed
        for stem in stems:
            if stem not in known:
                raise UserError(
                    f"has no line for the file {stem!r}", site=site, file=table, remedy=f"add `{stem},PATIENT`"
                )
        return [known[stem] for stem in stems]
    if pattern is None:
        return list(stems)
    try:
        compiled = re.compile(pattern)
    except re.error as e:
        raise UserError(f"patient_pattern {pattern!r} is no regular expression: {e}", site=site) from e
    found = []
    for stem in stems:
        match = compiled.search(stem)
        patient = match and (match.group(1) if compiled.groups else match.group())
        if not patient:
            raise UserError(
                f"patient_pattern {pattern!r} does not match the file {stem!r}",
                site=site,
                remedy=f"write a pattern that matches every file, or list the patients in {FILE_NAME}",
            )
        found.append(patient)
    return found


def patient_rule(folder: Path, pattern: str | None) -> str:
    """How `patients_of` tells patients apart, in a few words."""
    if (folder / FILE_NAME).is_file():
        return f"listed in {FILE_NAME}"
    return f"found by the pattern {pattern!r} in file names" if pattern is not None else "one per file"


def _read(table: Path, site: str) -> dict[str, str]:
    try:
        with table.open(newline="", encoding="utf-8-sig") as f:
            rows = list(csv.DictReader(f))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise UserError(f"cannot be read: {e}", site=site, file=table) from e
    if rows and not {"file", "patient"} <= set(rows[0]):
        raise UserError("must have the columns `file` and `patient`", site=site, file=table)
    known: dict[str, str] = {}
    for row in rows:
        if not row["file"] or not row["patient"]:
            raise UserError(
                "has a line without file or patient", site=site, file=table, remedy="fill it in or remove it"
            )
        if known.setdefault(row["file"], row["patient"]) != row["patient"]:
            raise UserError(f"gives the file {row['file']!r} two patients", site=site, file=table)
    return known
