"""Reads images and masks of a BIDS dataset: `sub-*/[ses-*]/anat/*_T2w.nii.gz`, masks below `derivatives/*/`.

A mask belongs to the image of its subject and session whose entities (`acq-ax`, `run-1`) it has, too; it may have more
(`space-orig`, `label-gland`). The subject is the patient.
https://bids-specification.readthedocs.io/en/stable/derivatives/imaging.html
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.natural_order import natural_key
from fedsm.core.task_settings import TaskSettings
from fedsm.data.formats.cases import Case, inside
from fedsm.data.formats.rules import Rule
from fedsm.data.readers import VOLUMES, read, stem, suffix

_WORD = re.compile(r"[A-Za-z0-9]+")
MASK_SUFFIXES = ("mask", "dseg")


@dataclass(frozen=True)
class File:
    """A file whose name BIDS can read: entities such as `sub` -> `01`, and a suffix such as `T2w`."""

    path: Path
    entities: dict[str, str]
    suffix: str


@dataclass(frozen=True)
class Wanted:
    """What is taken of a dataset.

    Attributes:
        images: suffixes of the images, such as `T2w`; several are channels. Empty: the only one that there is.
        derivative: the folder in `derivatives` with the masks; None: the only one that has some.
        masks: entities of the masks, such as `label` -> `gland`.
    """

    images: tuple[str, ...] = ()
    derivative: str | None = None
    masks: tuple[tuple[str, str], ...] = ()


def read_bids(source: Path, sites: Rule, wanted: Wanted) -> tuple[list[Case], TaskSettings, int]:
    """The images that have a mask, the task that fits them, and the number of images without one, which are left out.

    Raises:
        UserError: whatever is ambiguous or missing.
    """
    images = [file for file in _files(source, source) if file.path.parent.name == "anat"]
    suffixes = wanted.images or _only_suffix(images, source)
    masks = _masks(source, wanted)
    found, without = [], 0
    first = [file for file in images if file.suffix == suffixes[0]]
    for image in sorted(first, key=lambda file: natural_key(file.path.name)):
        mask = _mask_of(image, masks)
        if mask is None:
            without += 1
            continue
        subject, name = f"sub-{image.entities['sub']}", stem(image.path).rpartition("_")[0]
        others = [_channel(image, other, images) for other in suffixes[1:]]
        found.append(Case(name, (image.path, *others), mask.path, sites.of([name, subject]), subject))
    if not found:
        raise UserError(f"no image {shown(suffixes[0])} with a mask in {source}", remedy="see --image and --derivative")
    return found, _task(source, found, masks, suffixes), without


def _files(root: Path, source: Path) -> list[File]:
    """The volumes of all subjects below a folder."""
    found = []
    for path in sorted(root.glob("sub-*/**/*")):
        is_file = path.is_file() or path.is_symlink()  # of DataLad, whose content may not have been fetched
        if suffix(path) in VOLUMES and not path.name.startswith(".") and is_file:
            *parts, kind = stem(path).split("_")
            pairs = [part.partition("-") for part in parts]
            if all(dash and _WORD.fullmatch(key) for key, dash, _ in pairs) and _WORD.fullmatch(kind):
                entities = {key: value for key, _, value in pairs}
                if "sub" in entities:
                    found.append(File(inside(source, path), entities, kind))
    return found


def _only_suffix(images: list[File], source: Path) -> tuple[str, ...]:
    suffixes = sorted({file.suffix for file in images})
    if len(suffixes) != 1:
        there = f"its anat folders hold {', '.join(suffixes)}" if suffixes else "expected sub-*/[ses-*]/anat/*.nii.gz"
        raise UserError(
            f"{source} has images of {len(suffixes)} kinds", remedy=f"choose with --image, for example T2w; {there}"
        )
    return (suffixes[0],)


def _masks(source: Path, wanted: Wanted) -> list[File]:
    """The masks of one derivative."""
    top = source / "derivatives"
    folders = sorted(path for path in top.iterdir() if path.is_dir()) if top.is_dir() else []
    if wanted.derivative is not None:
        folders = [path for path in folders if path.name == wanted.derivative]
    chosen = dict(wanted.masks)
    masks = {
        folder.name: [
            file
            for file in _files(folder, source)
            if file.suffix in MASK_SUFFIXES and chosen.items() <= file.entities.items()
        ]
        for folder in folders
    }
    masks = {name: files for name, files in masks.items() if files}
    if not masks:
        raise UserError(f"no *_mask or *_dseg volume below {top}", remedy="see --derivative and --mask")
    if len(masks) > 1:
        raise UserError(f"{', '.join(masks)} in {top} have masks", remedy="choose one with --derivative")
    return next(iter(masks.values()))


def _mask_of(image: File, masks: list[File]) -> File | None:
    found = [mask for mask in masks if image.entities.items() <= mask.entities.items()]
    if len(found) > 1:
        names = ", ".join(mask.path.name for mask in found[:3])
        raise UserError(
            f"has {len(found)} masks ({names})", file=image.path, remedy="choose with --mask, for example label-gland"
        )
    return found[0] if found else None


def _channel(image: File, kind: str, images: list[File]) -> Path:
    """The file of another kind of the same subject, session and run."""
    found = [file.path for file in images if file.suffix == kind and file.entities == image.entities]
    if not found:
        raise UserError(f"has no {kind} beside it", file=image.path, remedy="add it, or leave out that kind")
    return found[0]


def _task(source: Path, cases: list[Case], masks: list[File], suffixes: Sequence[str]) -> TaskSettings:
    """The task: one label for masks, those of the table of labels (or numbered ones) for segmentations."""
    values: set[int] = set()
    for case in cases:
        found = np.unique(read(case.mask, case.site, mask=True))
        if not np.isfinite(found).all() or (found != np.rint(found)).any():
            raise UserError("holds values that are no whole numbers", site=case.site, file=case.mask)
        values |= set(map(int, found.tolist()))
    values -= {0}
    used = [mask for mask in masks if mask.path in {case.mask for case in cases}]
    if not values:
        raise UserError("all masks are empty", file=source)
    if all(mask.suffix == "mask" for mask in used):
        names = {mask.entities.get("label") or mask.entities.get("desc") or "mask" for mask in used}
        labels = {names.pop() if len(names) == 1 else "mask": sorted(values)}
    else:
        known = _label_names(used[0].path, source)
        labels = {known.get(value, f"label {value}"): [value] for value in sorted(values)}
    values_of_task = {
        "name": "_".join(suffixes).lower(),
        "channels": len(suffixes),
        "labels": labels,
        "intensity": "channel_percentiles" if len(suffixes) > 1 else "percentiles",
        "background": [0],
    }
    try:
        return TaskSettings.from_dict(values_of_task)
    except UserError as e:
        raise UserError(f"the masks make no task: {e.message}", file=source, remedy=e.remedy) from e


def _label_names(mask: Path, source: Path) -> dict[int, str]:
    """Value -> name of a segmentation, from the nearest table of labels: its own, or one of its derivative."""
    own = mask.with_name(f"{stem(mask)}.tsv")
    tables = [
        own,
        *(table for folder in mask.parents if source in folder.parents for table in folder.glob("*dseg.tsv")),
    ]
    table = next((path for path in tables if path.is_file()), None)
    if table is None:
        return {}
    try:
        with inside(source, table).open(newline="", encoding="utf-8-sig") as f:
            return {int(row["index"]): str(row["name"]) for row in csv.DictReader(f, delimiter="\t")}
    except (OSError, ValueError, KeyError, csv.Error) as e:
        raise UserError("needs the columns `index` and `name`", file=table, remedy="correct or remove it") from e
