"""`fedsm data check`: every problem with the sites' files and its remedy, before training costs time.

Nothing here stops at the first problem: each problem of a file becomes a note (kind -> files), and the notes of a site
become its findings. The notes name files, so they stay at the site.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fedsm.core.errors import UserError
from fedsm.core.names import is_site_name
from fedsm.core.task_settings import TaskSettings
from fedsm.core.text import printable
from fedsm.data.check_pair import Seen, find_pairs, look_at
from fedsm.data.dicom.place import ImportPlace
from fedsm.data.dicom.site import import_site, is_dicom_site, is_one_site, is_site
from fedsm.data.findings import Notes, Patients, SiteReport, name_of, percent, some
from fedsm.data.patients import patient_rule, patients_of
from fedsm.data.site_folder import site_folders, suggest_label
from fedsm.data.site_rules import RESEARCH, SiteRules
from fedsm.data.split import FILE_NAME, PARTS

_MIN_PATIENTS, _FEW_PATIENTS = 3, 12
_RARE, _COMMON = 0.0005, 0.9  # fractions of a label that are most likely a mistake
_FAR_RATIO, _FAR_MEDIAN = 5, 0.5


def split_overlaps(patients: list[str], split: dict[str, list[int]]) -> dict[str, list[str]]:
    """Patients that are in more than one part of a split, with these parts.

    Args:
        patients: the patient of each pair.
        split: part -> indices into `patients`, as `split_by_patient` gives them.
    """
    parts: dict[str, list[str]] = defaultdict(list)
    for part, rows in split.items():
        for patient in {patients[i] for i in rows}:
            parts[patient].append(part)
    return {patient: found for patient, found in sorted(parts.items()) if len(found) > 1}


def _check_splits(path: Path, patient_of: dict[str, str], notes: Notes) -> None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or any(not isinstance(stored.get(p), list) or not stored[p] for p in PARTS):
            raise ValueError(f"needs a list of names for each of {', '.join(PARTS)}")
        named = [(part, str(name)) for part in PARTS for name in stored[part]]
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as e:
        notes["splits"].append(f"{path.name} ({printable(str(e))})")
        return
    names = [name for _, name in named]
    patients = [patient_of.get(name, name) for name in names]
    overlaps = split_overlaps(patients, {part: [i for i, (p, _) in enumerate(named) if p == part] for part in PARTS})
    notes["overlap"] += [f"{printable(patient)} ({' and '.join(parts)})" for patient, parts in overlaps.items()]
    here = set(patient_of)
    notes["stale"] += [printable(n) for n in sorted(set(names) - here)]
    notes["unlisted"] += [printable(n) for n in sorted(here - set(names))]
    left = [part for part in PARTS if not here & set(map(str, stored[part]))]
    notes["splits"] += [f"{path.name} (no file of {part} is here)" for part in left]


def _check_patients(
    folder: Path, site: str, stems: list[str], task: TaskSettings, rules: SiteRules, notes: Notes
) -> tuple[dict[str, str], Patients | None]:
    """The patient of each file, their number and the rule that found them; notes what is odd."""
    try:
        pattern = rules.pattern(folder, task, site)
        patient_of = dict(zip(stems, patients_of(folder, stems, pattern, site), strict=True))
    except UserError as e:
        notes["patients"].append(printable(f"{e.what}; {e.remedy}" if e.remedy else e.what))
        return {stem: stem for stem in stems}, None
    count = len(set(patient_of.values()))
    if count < _MIN_PATIENTS:
        notes["too few"].append(str(count))
    elif count < _FEW_PATIENTS:
        notes["few"].append(str(count))
    return patient_of, Patients(count, patient_rule(folder, pattern))


def _check_copies(seen: dict[str, Seen], notes: Notes) -> None:
    copies: dict[str, list[str]] = defaultdict(list)
    for name, one in seen.items():
        copies[one.image].append(name)
    for names in copies.values():
        if len(names) > 1:
            kind = "conflict" if len({seen[name].mask for name in names}) > 1 else "repeated"
            notes[kind].append(some(names, " = "))


def _summarize(seen: list[Seen], task: TaskSettings, notes: Notes) -> dict:
    """Sizes, fractions of the labels and intensities of a site; notes what is odd about them."""
    if not seen:
        return {}
    pixels = sum(sum(one.counts.values()) for one in seen)
    labels = {n: sum(one.counts.get(v, 0) for one in seen for v in vs) / pixels for n, vs in task.labels.items()}
    empty = len(notes["empty"])
    if empty == len(seen):
        notes["all empty"].append(str(empty))
        del notes["empty"]
    else:
        odd = {n: f for n, f in labels.items() if not _RARE <= f <= _COMMON}
        notes["balance"] += [f"{n} has {percent(f)}" for n, f in odd.items()]
    slices, heights, widths = zip(*(one.shape for one in seen), strict=True)
    quantiles = np.median([one.quantiles for one in seen], axis=0).tolist()
    ranges = {"width": widths, "height": heights, "slices": slices}
    return {name: [min(values), max(values)] for name, values in ranges.items()} | {
        "images": sum(slices),
        "labels": labels,
        "empty_masks": empty,
        "intensity": dict(zip(("p1", "p50", "p99"), quantiles, strict=True)),
    }


def check_folder(
    folder: Path,
    site: str,
    task: TaskSettings,
    progress: Callable[[int], object] | None = None,
    rules: SiteRules = RESEARCH,
    imports: ImportPlace | None = None,
) -> SiteReport:
    """Checks one site; decodes each file once.

    Args:
        folder: the site's folder, with `images/` and `masks/` or DICOM files.
        site: its name, for the report.
        task: what its masks may hold.
        progress: called with 1 for each pair.
        rules: what the site decides about its files, whatever the task says.
        imports: where the copy of DICOM files is kept; see `images_folder`.
    """
    notes: Notes = defaultdict(list)
    imported = import_site(folder, site, task, imports) if is_dicom_site(folder) else None
    if imported:
        for problem in imported.problems:
            notes[problem.kind].append(problem.text(folder))
        folder = imported.folder
    pairs = find_pairs(folder, notes)
    seen = {}
    for pair in pairs:
        if (one := look_at(pair, site, task, notes)) is not None:
            seen[name_of(pair.image)] = one
        if progress:
            progress(1)
    _check_copies(seen, notes)
    patient_of, patients = _check_patients(folder, site, [pair.stem for pair in pairs], task, rules, notes)
    _check_splits(folder / FILE_NAME, patient_of, notes)
    summary = _summarize(list(seen.values()), task, notes)
    hashes = {name: one.image for name, one in seen.items()}
    report = SiteReport(site, len(pairs), [], summary, patients if pairs else None, hashes)
    values = set().union(*(one.counts for one in seen.values()))
    suggested = suggest_label(task, values)
    report.add(notes, {"values": f"{suggested}, or correct the masks (never JPEG)"} if suggested else {})
    if imported:
        report.source = imported.found.describe()
        report.rename(imported.shown)
    return report


def check_root(
    root: Path, task: TaskSettings, progress: Callable[[int], object] | None = None, rules: SiteRules = RESEARCH
) -> list[SiteReport]:
    """Checks all sites of a data root, and compares them with each other. A single site's folder works as well.

    A data root means research on one machine. A single folder is a hospital's own: there a task's patient_pattern is
    not used, and a task that needs one is noted.

    Raises:
        UserError: no such folder, or no site in it.
    """
    if is_one_site(root):
        return [check_folder(root, root.resolve().name, task, progress, replace(rules, task_pattern=False))]
    names = site_folders(root)
    if not any(is_site(root / name) for name in names):
        raise UserError(
            "holds no site",
            file=root,
            remedy="give a folder with one sub-folder per site, each with images/ and masks/ or dicom/",
        )
    reports = [check_folder(root / name, name, task, progress, rules) for name in names]
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for report in reports:
        for name, digest in report.hashes.items():
            owners[digest].setdefault(report.site, name)
    for report in reports:
        notes: Notes = defaultdict(list)
        if len(reports) == 1:
            notes["one site"].append("")
        if not is_site_name(report.site):
            notes["site name"].append(printable(report.site))
        for name, digest in report.hashes.items():
            others = [f"{site}/{file}" for site, file in owners[digest].items() if site != report.site]
            notes["elsewhere"] += [f"{name} (as {others[0]})"] if others else []
        _compare_range(report, [r for r in reports if r is not report and r.summary], task, notes)
        report.add(notes)
    return reports


def check_with_bar(root: Path, task: TaskSettings, rules: SiteRules = RESEARCH) -> list[SiteReport]:
    """`check_root` with a progress bar on a terminal, if it takes longer than a second."""
    total = sum(1 for pattern in ("images/*", "*/images/*") for _ in root.glob(pattern))
    with tqdm(total=total, desc="checking data", unit="pair", leave=False, delay=1, disable=None) as bar:
        return check_root(root, task, bar.update, rules)


def _compare_range(report: SiteReport, others: list[SiteReport], task: TaskSettings, notes: Notes) -> None:
    # Percentiles remove any scale and offset, so a scanner's own units mean nothing then.
    if task.intensity != "unit" or not report.summary or not others:
        return
    own = report.summary["intensity"]
    usual = {q: float(np.median([r.summary["intensity"][q] for r in others])) for q in own}
    low, high = sorted((own["p99"], usual["p99"]))
    if abs(own["p50"] - usual["p50"]) > _FAR_MEDIAN or high > _FAR_RATIO * max(low, 1e-6):
        notes["far"].append(" against ".join(f"median {q['p50']:.2f}, 99 % {q['p99']:.2f}" for q in (own, usual)))
