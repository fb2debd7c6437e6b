"""What a folder of DICOM files holds: images, masks, and what cannot be used, each named once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.core.natural_order import natural_key
from fedsm.core.text import printable
from fedsm.data.dicom.header import (
    DICOMDIR,
    LABELMAP,
    RTSTRUCT,
    SEG,
    Instance,
    looks_like_dicom,
    read_instance,
)
from fedsm.data.dicom.series import DicomImage, by_series, images_of
from fedsm.data.dicom.unusable import Unusable

_MASKS = (SEG, LABELMAP, RTSTRUCT)
# Kinds of problems; their levels and remedies are in `findings.KINDS`.
FILE, SERIES, NO_MASK, OTHER = "dicom file", "dicom series", "dicom no mask", "dicom other"


@dataclass(frozen=True)
class Problem:
    """A file or series that is not used: its kind, its first file, how many files, why, and the remedy."""

    kind: str
    path: Path
    reason: str
    remedy: str
    files: int = 1

    @property
    def bad(self) -> bool:
        """Whether it should be corrected: most folders also hold what is simply of no use."""
        return self.kind in (FILE, SERIES)

    def text(self, base: Path) -> str:
        """One entry of a report: the file below a folder, and what is wrong."""
        more = f" and {self.files - 1} more files of its series" if self.files > 1 else ""
        return printable(f"{shown_below(self.path, base)}{more} ({self.reason}; {self.remedy})")


@dataclass
class Found:
    """What was found; `masks` are DICOM-SEG and RTSTRUCT files, `others` files that are no DICOM."""

    images: list[DicomImage] = field(default_factory=list)
    masks: list[Instance] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    _seen: dict[str, Instance] = field(default_factory=dict, repr=False)

    def describe(self) -> str:
        """A line for a report: counts, modalities and transfer syntaxes."""
        files = [frame.instance for image in self.images for frame in image.frames if frame.index == 0]
        patients, kinds = len({one.patient for one in files}), Counter(image.first.modality for image in self.images)
        syntaxes = sorted({_syntax_name(one.syntax) for one in files})
        modalities = ", ".join(
            f"{count} {printable(kind) or 'of no modality'}" for kind, count in sorted(kinds.items())
        )
        count = f"{len(self.images)} image{'s' * (len(self.images) != 1)}"
        return (
            f"DICOM: {count} ({modalities}) of {patients} patient{'s' * (patients != 1)} in {len(files)} files;"
            f" {', '.join(syntaxes) or 'no transfer syntax'}"
        )


def walk(folder: Path) -> list[Path]:
    """All files below a folder, without hidden ones. Links to folders are not followed."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        found += [Path(root, name) for name in sorted(names, key=natural_key) if not name.startswith(".")]
    return found


def scan(paths: Iterable[Path], base: Path | None = None) -> Found:
    """Sorts files into images, masks and problems.

    Args:
        paths: the files; those that are not DICOM are listed as `others`.
        base: links that lead out of this folder are not followed; None: they are.
    """
    found = Found()
    instances: list[Instance] = []
    inside = base.resolve() if base else None
    for path in paths:
        if inside and path.is_symlink() and not path.resolve().is_relative_to(inside):
            found.problems.append(
                Problem(OTHER, path, "is a link that leads out of the folder", "copy the file itself")
            )
        elif looks_like_dicom(path):
            _add(path, found, instances)
        else:
            found.others.append(path)
    for files in by_series(instances).values():
        for image in images_of(files):
            if isinstance(image, DicomImage):
                found.images.append(image)
            else:
                bad, why = image
                kind = OTHER if all(one.localizer for one in bad) else SERIES
                found.problems.append(Problem(kind, bad[0].path, why.reason, why.remedy, len(bad)))
    found.images.sort(key=lambda image: natural_key(str(image.path)))
    return found


def _add(path: Path, found: Found, instances: list[Instance]) -> None:
    try:
        instance = read_instance(path)
    except Unusable as e:
        found.problems.append(Problem(FILE, path, e.reason, e.remedy))
        return
    if instance.sop_class == DICOMDIR:
        return
    if instance.uid in found._seen:
        found.problems.append(Problem(OTHER, path, "is here twice", "keep it once"))
        return
    found._seen[instance.uid] = instance
    if instance.sop_class in _MASKS:
        found.masks.append(instance)
    elif instance.frames:
        instances.append(instance)
    else:
        found.problems.append(Problem(OTHER, path, "is DICOM without an image", "nothing to do"))


def shown_below(path: Path, base: Path) -> str:
    """A file's path below a folder."""
    return path.relative_to(base).as_posix() if path.is_relative_to(base) else path.name


def _syntax_name(uid: str) -> str:
    from pydicom.uid import UID

    name = UID(uid).name
    return name if name != uid else "unknown transfer syntax"
