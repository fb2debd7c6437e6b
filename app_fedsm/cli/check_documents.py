"""The `data` of `fedsm data check` and `fedsm site check`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from fedsm.core.described import Described, Name, Score, Site
from fedsm.data.findings import SiteReport, level_counts, worst
from fedsm.preflight.line import Line

Level = Literal["PASS", "WARN", "FAIL"]


class Counts(Described):
    """How often each level occurs."""

    PASS: int = Field(description="Nothing to do.")
    WARN: int = Field(description="To be looked at.")
    FAIL: int = Field(description="Must be corrected.")


class PatientCount(Described):
    """The patients of a site."""

    count: int = Field(description="How many there are.")
    rule: str = Field(description="How they are told apart.")


class Intensity(Described):
    """Median over the images of percentiles of their values."""

    p1: Score = Field(description="1st percentile.")
    p50: Score = Field(description="Median.")
    p99: Score = Field(description="99th percentile.")


class SiteSummary(Described):
    """Numbers of a site's files."""

    width: list[int] = Field(description="The least and the largest.")
    height: list[int] = Field(description="The least and the largest.")
    slices: list[int] = Field(description="The least and the largest of a file; 1 for pictures.")
    images: int = Field(description="Pictures and slices in all.")
    labels: dict[Name, Score] = Field(description="Share of each label in all pixels.")
    empty_masks: int = Field(description="Masks without any label.")
    intensity: Intensity = Field(description="Values of the images.")


class DataFinding(Described):
    """One kind of problem at a site."""

    level: Literal["WARN", "FAIL"] = Field(description="How bad it is.")
    kind: str = Field(description="Short fixed name of the problem, for programs.")
    what: str = Field(description="What is wrong.")
    remedy: str = Field(description="What to do about it.")
    noted: list[str] = Field(description="The files that have it, some with details; or numbers that `what` quotes.")


class DataSite(Described):
    """The report of one site."""

    site: str = Field(description="The site.")
    level: Level = Field(description="That of the worst finding.")
    pairs: int = Field(description="Pairs of image and mask.")
    patients: PatientCount | None = Field(description="Null where they cannot be told apart.")
    source: str | None = Field(description="What a folder of DICOM files holds, in words; null for images/ and masks/.")
    summary: SiteSummary | None = Field(description="Null where no pair could be read.")
    findings: list[DataFinding] = Field(description="The worst first.")


class DataCheck(Described):
    """The check of a data root."""

    root: str = Field(description="The folder that was checked.")
    task: str = Field(description="The task.")
    level: Level = Field(description="That of the worst site. `FAIL` gives exit code 1.")
    counts: Counts = Field(description="How many sites have each level.")
    sites: list[DataSite] = Field(description="One report per site.")
    sheets: dict[Site, str] = Field(description="Contact sheets that were written; they show images of patients.")


class SiteCheckLine(Described):
    """One check."""

    level: Level = Field(description="The result.")
    name: str = Field(description="What was checked, in one word.")
    text: str = Field(description="What was found.")
    remedy: str | None = Field(description="What to do about it; with every `WARN` and `FAIL`.")


class SiteCheck(Described):
    """The check of a site's machine and kit."""

    site: str = Field(description="The site.")
    kit: str = Field(description="The startup kit's folder.")
    task: str | None = Field(description="The task; null: data, memory and disk were not checked.")
    level: Level = Field(description="That of the worst check. `FAIL` gives exit code 1.")
    counts: Counts = Field(description="How many checks have each level.")
    checks: list[SiteCheckLine] = Field(description="The checks, in the order of the table.")


def data_check(root: Path, task: str, reports: Sequence[SiteReport], sheets: dict[str, Path]) -> DataCheck:
    """What a check of sites found; `sheets`: site -> its contact sheet."""
    return DataCheck.model_validate(
        {"root": str(root.resolve()), "task": task, "sites": [_site(report) for report in reports]}
        | {"sheets": {site: str(path.resolve()) for site, path in sheets.items()}}
        | _levels([report.level for report in reports])
    )


def _site(report: SiteReport) -> dict:
    keys = ("level", "kind", "what", "remedy", "noted")
    return {
        "site": report.site,
        "level": report.level,
        "pairs": report.pairs,
        "patients": report.patients and {"count": report.patients.count, "rule": report.patients.rule},
        "source": report.source or None,
        "summary": report.summary or None,
        "findings": [{key: getattr(finding, key) for key in keys} for finding in report.findings],
    }


def site_check(site: str, kit: Path, task: str | None, lines: Sequence[Line]) -> SiteCheck:
    """What a check of a site's machine and kit found."""
    checks = [
        {"level": line.level, "name": line.topic, "text": line.what, "remedy": line.remedy or None} for line in lines
    ]
    found = {"site": site, "kit": str(kit.resolve()), "task": task, "checks": checks}
    return SiteCheck.model_validate(found | _levels([line.level for line in lines]))


def _levels(levels: Sequence[str]) -> dict:
    return {"level": worst(levels), "counts": level_counts(levels)}
