"""Train, validation and test parts of a site: 0.5 / 0.25 / 0.25 by patient, fixed by a seed and stored.

The split is drawn once, written to `seed_<S>/splits.json` in the site's state folder and used again: an image that is
added or removed later does not move the others from training to test. A `splits.json` in the site's own folder has
precedence.
The site decides whether its own seed or the job's is used: see `site_rules`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.files import write_json

PARTS = ("train", "validation", "test")
FILE_NAME = "splits.json"


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from any values: the same on every machine, unrelated for unrelated values."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def split_by_patient(patients: list[str], seed: int, site: str) -> dict[str, list[int]]:
    """Splits a site's pairs so that no patient is in two parts.

    Args:
        patients: the patient of each pair.
        seed: fixes the split.
        site: the site's name; part of the seed, and named in the error.

    Returns:
        part -> indices into `patients`; every part holds at least one patient.

    Raises:
        UserError: fewer than 3 patients.
    """
    names = sorted(set(patients))
    if len(names) < 3:
        raise UserError(
            f"{len(names)} patients cannot be split into train, validation and test",
            site=site,
            remedy="at least 3 are needed",
        )
    order = np.random.default_rng(derive_seed(seed, site, "split")).permutation(len(names))
    n_validation = max(1, round(len(names) / 4))
    n_train = max(1, len(names) - 2 * n_validation)
    bounds = (0, n_train, n_train + n_validation, len(names))
    part_of = {names[i]: part for p, part in enumerate(PARTS) for i in order[bounds[p] : bounds[p + 1]]}
    return {part: [i for i, patient in enumerate(patients) if part_of[patient] == part] for part in PARTS}


def split_site(
    stems: list[str], patients: list[str], seed: int, site: str, folder: Path, state: Path | None, write: bool = True
) -> dict[str, list[int]]:
    """The split of a site's files: the stored one, or a new one.

    Args:
        stems: the files.
        patients: the patient of each.
        seed: fixes the split.
        site: the site's name.
        folder: the site's data folder, whose `splits.json` is taken as it is.
        state: where a drawn split is stored and found again; None: it is drawn anew.
        write: whether the split may be written there; not when a finished run is only read.

    Returns:
        part -> indices into `stems`.

    Raises:
        UserError: a `splits.json` that does not fit the files, or too few patients.
    """
    own = folder / FILE_NAME
    if own.is_file():
        return check_parts(_read(own, site), stems, patients, own, site)
    if state is None:
        return split_by_patient(patients, seed, site)
    kept = state / f"seed_{seed}" / FILE_NAME
    if kept.is_file():
        parts = _read(kept, site)
    else:
        drawn = split_by_patient(patients, seed, site)
        parts = {part: [stems[i] for i in rows] for part, rows in drawn.items()}
    known = {stem: part for part in PARTS for stem in parts[part]}
    part_of = {patient: known[stem] for stem, patient in zip(stems, patients, strict=True) if stem in known}
    for stem, patient in zip(stems, patients, strict=True):
        if stem not in known:  # came later: its patient's part, or one drawn for a new patient
            share = derive_seed(seed, site, patient) % 4
            parts[part_of.setdefault(patient, PARTS[max(0, share - 1)])].append(stem)
    if write:
        write_json(kept, parts, shared=True)
    present = set(stems)
    return check_parts({p: [s for s in parts[p] if s in present] for p in PARTS}, stems, patients, kept, site)


def _read(path: Path, site: str) -> dict[str, list[str]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {part: [str(stem) for stem in content[part]] for part in PARTS}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(
            "cannot be used",
            site=site,
            file=path,
            remedy="it must map train, validation and test to lists of file stems",
        ) from e


def check_parts(parts: dict, stems: list[str], patients: list[str], path: Path, site: str) -> dict[str, list[int]]:
    """Stems to indices, checked: every file in one part, no patient in two, no part empty."""
    part_of: dict[str, str] = {}
    for part in PARTS:
        for stem in parts[part]:
            if part_of.setdefault(stem, part) != part:
                raise UserError(f"has the file {stem!r} in two parts", site=site, file=path)
    owner: dict[str, str] = {}
    split: dict[str, list[int]] = {part: [] for part in PARTS}
    for i, (stem, patient) in enumerate(zip(stems, patients, strict=True)):
        if stem not in part_of:
            raise UserError(f"does not name the file {stem!r}", site=site, file=path, remedy="add it to one part")
        if owner.setdefault(patient, part_of[stem]) != part_of[stem]:
            raise UserError(
                f"has the patient {patient!r} in two parts", site=site, file=path, remedy="keep each in one"
            )
        split[part_of[stem]].append(i)
    for part, rows in split.items():
        if not rows:
            raise UserError(f"leaves no file for {part}", site=site, file=path)
    return split
