"""The findings of `fedsm data check`: their texts, their remedies, and how they are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from fedsm.core.errors import UserError
from fedsm.core.text import printable
from fedsm.data.readers import FORMATS

Notes = defaultdict[str, list[str]]
LEVELS = ("PASS", "WARN", "FAIL")
_NAMED = 5  # files that a finding names

# kind: (level, what, remedy), in the order of the report. "{}" is replaced by the notes; otherwise they list the files.
KINDS = {
    "site name": ("FAIL", "FLARE cannot carry the name of this folder", "rename it: letters, digits, '-' and '_' only"),
    "folder": ("FAIL", "folder is missing or cannot be opened", "create it, and put the site's files there"),
    "no images": ("FAIL", "no images", f"put {FORMATS} files into images/ and masks/"),
    "dicom file": ("FAIL", "DICOM file that cannot be used", "see each; what is not named here is used"),
    "dicom series": ("FAIL", "DICOM series that cannot be used", "see each; what is not named here is used"),
    "no mask": ("FAIL", "image without mask", "add a mask of the same name, or remove the image"),
    "no image": ("FAIL", "mask without image", "add an image of the same name, or remove the mask"),
    "twins": ("FAIL", "two files of the same name", "keep one of them"),
    "no file": ("FAIL", "not a regular file", "put the file itself there, or remove it with its pair"),
    "unreadable": ("FAIL", "cannot be read", "replace it (by one 2D picture or 3D volume), or remove it with its pair"),
    "not finite": ("FAIL", "NaN or infinite values", "export it again, or set these voxels to the background"),
    "channels": ("FAIL", "number of channels that does not fit the task",
                 "save it with as many, or correct `channels` in the task"),
    "size": ("FAIL", "image and mask differ in size", "export the mask at the image's size (nearest neighbour)"),
    "grid": ("FAIL", "image and mask differ in spacing or position", "resample the mask to the image's grid"),
    "colour": ("FAIL", "mask is a colour picture", "save the mask with one grey channel"),
    "values": ("FAIL", "mask values that the task does not know", "correct the mask (never JPEG) or the task's labels"),
    "all empty": ("FAIL", "all {} masks are empty", "find the right masks, or correct the task's labels"),
    "range": ("FAIL", "intensities outside a picture's range",
              "set `intensity: percentiles` in the task, or export again"),
    "conflict": ("FAIL", "one image with different masks", "keep one: in two parts it leaks from train to test"),
    "patients": ("FAIL", "patients cannot be told apart", "correct patients.csv or patient_pattern"),
    "too few": ("FAIL", "{} patients cannot be split", "add patients: train, validation and test need one each"),
    "overlap": ("FAIL", "patient in two parts of splits.json", "leave each patient in one part, or delete splits.json"),
    "splits": ("FAIL", "splits.json cannot be used", "name the files of train, validation and test, or delete it"),
    "unlisted": ("FAIL", "file in no part of splits.json", "add it to one part, or delete splits.json to split again"),
    "stale": ("WARN", "splits.json names files that are not here", "bring them back, or take their names out"),
    "few": ("WARN", "only {} patients", "expect scores that depend on the split; add patients if you can"),
    "repeated": ("WARN", "one image under two names", "keep one: in two parts it leaks from train to test"),
    "elsewhere": ("WARN", "image that another site has too", "keep it at one site: it leaks from train to test"),
    "empty": ("WARN", "empty mask", "expected where there is nothing to segment; otherwise replace the mask"),
    "balance": ("WARN", "label {} of the pixels", "look at the contact sheet: is this the right label?"),
    "constant": ("WARN", "image with a single value", "replace it or remove it with its mask"),
    "8 bit": ("WARN", "8-bit data in a wider file: reads as black", "save as 8 bit, or stretch it to the file's range"),
    "dark": ("WARN", "image is nearly black", "look at the contact sheet: is it exported with the right range?"),
    "bright": ("WARN", "image is nearly white", "look at the contact sheet: is it exported with the right range?"),
    "far": ("WARN", "intensities unlike the other sites': {}",
            "expected with a different scanner; otherwise check the export"),
    "format": ("WARN", "name and format differ", "nothing to do: the content decides; rename it to be clear"),
    "palette": ("WARN", "GIF mask with a palette of colours", "look at the contact sheet: GIF writers renumber labels"),
    "mixed": ("WARN", "volume and picture as a pair", "compare with the contact sheet: is the mask turned or flipped?"),
    "passed over": ("WARN", "unsupported file, ignored", "convert it if it belongs to the data, otherwise remove it"),
    "dicom no mask": ("WARN", "DICOM image without mask, not used", "add a mask if it belongs to the data"),
    "dicom other": ("WARN", "file that is no image of the data, ignored", "see each"),
    "one site": ("WARN", "the only site", "`fedsm run` needs a folder of at least 2 sites"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One kind of problem at a site, with its remedy and the first few files that have it.

    Attributes:
        kind: its key in `KINDS`.
        noted: all that was noted about it: mostly a file's name and what is wrong with it.
    """

    level: str
    site: str
    what: str
    remedy: str
    file: str = ""
    kind: str = ""
    noted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patients:
    """How many patients a site has, and how they are told apart."""

    count: int
    rule: str

    def __str__(self) -> str:
        return f"{self.count} patient{'s' * (self.count != 1)}, {self.rule}"


@dataclass
class SiteReport:
    """A site's findings, worst first.

    Attributes:
        patients: None if they cannot be told apart.
        hashes: image file -> hash of its pixels, to compare sites.
        source: what a folder of DICOM files holds, in a few words; empty: the site has images/ and masks/.
        noted: all notes: mostly a file's name and what is wrong with it.
    """

    site: str
    pairs: int
    findings: list[Finding]
    summary: dict
    patients: Patients | None = None
    hashes: dict[str, str] = field(default_factory=dict, repr=False)
    noted: list[str] = field(default_factory=list, repr=False)
    source: str = ""

    @property
    def level(self) -> str:
        """PASS, WARN or FAIL: that of the worst finding."""
        return worst(finding.level for finding in self.findings)

    def add(self, notes: Notes, remedies: Mapping[str, str] = MappingProxyType({})) -> None:
        """Turns notes into findings; `remedies`: kind -> a remedy instead of the usual one."""
        for kind, (level, what, remedy) in KINDS.items():
            if entries := notes.get(kind):
                noted = tuple(filter(None, entries))
                self.noted += noted
                if "{}" in what:
                    what, entries = what.format(some(entries)), []
                count = f" ({len(entries)})" if len(entries) > 1 else ""
                remedy = printable(remedies.get(kind, remedy))
                self.findings.append(Finding(level, self.site, what + count, remedy, some(entries), kind, noted))
        self.findings.sort(key=lambda finding: finding.level)

    def rename(self, shown: Callable[[str], str]) -> None:
        """Shows other names of files in the findings; `noted` keeps those by which the files are found."""
        self.findings = [
            replace(one, file=shown(one.file), noted=tuple(map(shown, one.noted))) for one in self.findings
        ]


def some(names: list[str], between: str = ", ") -> str:
    rest = len(names) - _NAMED
    return between.join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def name_of(path: Path) -> str:
    return printable(f"{path.parent.name}/{path.name}")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %" if fraction >= 0.001 or fraction == 0 else f"{100 * fraction:.2g} %"


def contents(report: SiteReport) -> str:
    """What a site's folder holds, in a few words."""
    parts = [f"{report.pairs} pair{'s' * (report.pairs != 1)}"]
    if summary := report.summary:
        sizes = [f"{w}x{h}" for w, h in zip(summary["width"], summary["height"], strict=True)]
        parts.append(" to ".join(dict.fromkeys(sizes)))
        if summary["slices"][1] > 1:
            parts.append(" to ".join(map(str, dict.fromkeys(summary["slices"]))) + " slices")
        parts += [f"{name} {percent(fraction)}" for name, fraction in summary["labels"].items()]
    return ", ".join(parts)


def worst(levels: Iterable[str]) -> str:
    """The worst of some levels; PASS of none."""
    return max(levels, key=LEVELS.index, default="PASS")


def level_counts(levels: Sequence[str]) -> dict[str, int]:
    """How often each level occurs."""
    return {level: levels.count(level) for level in LEVELS}


def count_levels(levels: Sequence[str]) -> str:
    """The same in words: `3 PASS, 1 FAIL`."""
    return ", ".join(f"{count} {level}" for level, count in level_counts(levels).items() if count)


def first_failure(reports: list[SiteReport], command: str) -> UserError | None:
    """The first FAIL as an error, and the command that shows all; None when nothing fails."""
    failures = [finding for report in reports for finding in report.findings if finding.level == "FAIL"]
    if not failures:
        return None
    first = failures[0]
    where = f": {first.file}" if first.file else ""
    more = f" ({len(failures) - 1} more; see `{command}`)" if len(failures) > 1 else ""
    return UserError(first.what + where, site=printable(first.site), remedy=first.remedy + more)


def warnings_of(reports: list[SiteReport]) -> list[str]:
    """The WARNs, one line per site."""
    lines = []
    for report in reports:
        if found := [finding.what for finding in report.findings if finding.level == "WARN"]:
            lines.append(f"WARN {printable(report.site)}: {'; '.join(found)}")
    return lines


def format_reports(reports: list[SiteReport]) -> str:
    """The reports as text for a terminal."""
    lines = []
    for report in reports:
        lines.append(f"{report.level} {printable(report.site)}: {contents(report)}")
        lines += [f"  {printable(line)}" for line in (report.source, report.patients) if line]
        for finding in report.findings:
            lines.append(f"  {finding.level} {finding.what}{': ' if finding.file else ''}{finding.file}")
            lines.append(f"       remedy: {finding.remedy}")
    counts = count_levels([report.level for report in reports])
    return "\n".join([*lines, f"{len(reports)} site{'s' * (len(reports) != 1)}: {counts}"])
