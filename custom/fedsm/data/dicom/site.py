"""A site whose folder holds DICOM files: converted once, to a private folder with images/, masks/ and patients.csv.

Everything behind it (pairs, split by patient, cache, checks) works on that folder. New studies are added, changed ones
are converted again, and what is gone from the site's folder is gone from there too. Names there are keyed hashes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsm.core.errors import UserError
from fedsm.core.file_lock import locked
from fedsm.core.files import write_json
from fedsm.core.private_files import new_file, private_files
from fedsm.core.task_settings import TaskSettings
from fedsm.core.text import CsvTable, printable
from fedsm.data.dicom.header import looks_like_dicom
from fedsm.data.dicom.place import FOLDER, ImportPlace, opaque, passing_place
from fedsm.data.dicom.references import Masks, assign
from fedsm.data.dicom.scan import NO_MASK, Found, Problem, scan, shown_below, walk
from fedsm.data.dicom.series import DicomImage
from fedsm.data.patients import FILE_NAME as PATIENTS

_INDEX, _LOCK = "index.json", "lock"
_PARTS = ("images", "masks")
_SHOWN = re.compile(r"(images|masks)/([0-9a-f]{16}(?:-\d{5})?)\.(?:nii\.gz|nii|\w+)")

log = logging.getLogger(__name__)


@dataclass
class Imported:
    """A site's converted folder.

    Attributes:
        folder: with images/, masks/ and patients.csv.
        found: what the site's folder holds.
        problems: what cannot be used, each file or series once.
        names: stem in `folder` -> the file or series that it is of, below the site's folder.
    """

    folder: Path
    found: Found
    problems: list[Problem] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def shown(self, text: str) -> str:
        """A finding's text with the site's own file names instead of the opaque ones."""
        return _SHOWN.sub(lambda m: f"{m[1][:-1]} of {self.names.get(m[2], m[2])}", text)


def is_dicom_site(folder: Path) -> bool:
    """Whether a site's folder has neither images/ nor masks/, but DICOM files: in dicom/ or anywhere below it."""
    if not folder.is_dir() or any((folder / part).is_dir() for part in _PARTS):
        return False
    return (folder / FOLDER).is_dir() or any(looks_like_dicom(path) for path in walk(folder))


def is_site(folder: Path) -> bool:
    """Whether a folder has what marks a site's."""
    return any((folder / part).is_dir() for part in (*_PARTS, FOLDER))


def is_one_site(root: Path) -> bool:
    """Whether a folder is one site's own and not a data root; a folder of studies has no site below it."""
    below = [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []
    return is_site(root) or (not any(map(is_site, below)) and is_dicom_site(root))


def images_folder(folder: Path, site: str, task: TaskSettings, place: ImportPlace | None) -> Path:
    """The folder with the images/ and masks/ of a site: its own, or the converted copy of its DICOM files.

    Args:
        folder: the site's folder.
        site: its name.
        task: whose labels the masks are to hold.
        place: where the copy is kept; None: in a temporary folder, until this process ends.

    Raises:
        UserError: its DICOM files hold no image with a mask that can be used.
    """
    if not is_dicom_site(folder):
        return folder
    imported = import_site(folder, site, task, place)
    if not imported.names:
        raise UserError(
            "holds no DICOM image with a mask that can be used", site=site, file=folder,
            remedy="see `fedsm data check`",
        )  # fmt: skip
    if bad := sum(problem.bad for problem in imported.problems):
        log.warning("site %r: %d DICOM files or series cannot be used; `fedsm data check` names them", site, bad)
    return imported.folder


def import_site(folder: Path, site: str, task: TaskSettings, place: ImportPlace | None = None) -> Imported:
    """Brings the converted copy of a site's DICOM files up to date.

    Raises:
        UserError: it cannot be written.
    """
    place = place or passing_place(folder)
    base = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    found = scan(walk(base), base)
    masks, unassigned = assign(found)
    out = place.for_task(task)
    imported = Imported(out, found, [*found.problems, *unassigned])
    try:
        with private_files():
            for part in _PARTS:
                (out / part).mkdir(parents=True, exist_ok=True, mode=0o700)
            key = place.key(site)
            with locked(out / _LOCK, site):
                _update(imported, masks, base, key, task)
    except OSError as e:
        raise UserError(
            f"the copy of the DICOM files cannot be written to {out} ({e.strerror or type(e).__name__})",
            site=site,
            remedy="make room there, or set another cache_dir in fedsm_site.yaml",
        ) from e
    return imported


def _update(imported: Imported, masks: dict[str, Masks], base: Path, key: bytes, task: TaskSettings) -> None:
    from fedsm.data.dicom.convert import Refused, convert  # loads nibabel

    out = imported.folder
    before, index = _read_index(out / _INDEX), {}
    for image in imported.found.images:
        own = masks.get(image.uid)
        if own is None:
            reason = "has no mask"
            problem = Problem(NO_MASK, image.path, reason, "add one, or nothing to do", len(image.files))
            imported.problems.append(problem)
            continue
        name, stamp = opaque(key, "image", image.uid), _stamp(key, image, own)
        known = before.get(name)
        if known is None or known["stamp"] != stamp or not _there(out, known["stems"]):
            _remove(out, name)
            try:
                known = {"stamp": stamp, "stems": convert(image, own, out, name, task)}
            except Refused as e:
                imported.problems += e.problems
                continue
        index[name] = known | {"patient": opaque(key, "patient", image.first.patient)}
        imported.names |= dict.fromkeys(known["stems"], printable(shown_below(image.path, base)))
    _clean(out, imported.names)
    with new_file(out / f"{PATIENTS}.new").open("w", newline="", encoding="utf-8") as file:
        table = CsvTable(file)
        table.write(("file", "patient"))
        table.write(*((stem, entry["patient"]) for entry in index.values() for stem in entry["stems"]))
    (out / f"{PATIENTS}.new").replace(out / PATIENTS)
    write_json(out / _INDEX, index)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: {"stamp": str(e["stamp"]), "stems": list(e["stems"])} for name, e in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _stamp(key: bytes, image: DicomImage, masks: Masks) -> str:
    """Changes with any file of an image or its masks."""
    files = [*image.files, *(one.path for one in masks.objects), *masks.files]
    states = [(path, path.stat()) for path in sorted(files)]
    text = json.dumps([[str(p), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for p, s in states])
    return hashlib.blake2b(text.encode(), key=key, digest_size=16).hexdigest()


def _there(out: Path, stems: Iterable[str]) -> bool:
    return all(any((out / part).glob(f"{stem}.*")) for part in _PARTS for stem in stems)


def _remove(out: Path, name: str) -> None:
    """Removes an earlier copy of an image: its mask may have had another format."""
    for part in _PARTS:
        for path in (out / part).glob(f"{name}*"):
            path.unlink()


def _clean(out: Path, stems: Iterable[str]) -> None:
    """Removes what is of no image any more."""
    kept = set(stems)
    for part in _PARTS:
        for path in (out / part).iterdir():
            if path.name.split(".")[0] not in kept:
                path.unlink()
