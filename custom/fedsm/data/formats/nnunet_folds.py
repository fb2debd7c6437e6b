"""Folds of nnU-Net: training and validation cases, and where the test cases come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.plain_json import read_json
from fedsm.data.formats.cases import Case, by_site
from fedsm.data.split import PARTS, derive_seed

SPLITS = "splits_final.json"
TRAIN, VALIDATION, TEST = PARTS


@dataclass(frozen=True)
class Fold:
    """A fold of nnU-Net.

    Attributes:
        number: which.
        file: `splits_final.json`; nnU-Net has it in its folder of preprocessed data.
    """

    number: int
    file: Path


def read_fold(fold: Fold, names: set[str]) -> dict[str, str]:
    """Case -> train or validation.

    Args:
        fold: the fold.
        names: the cases, each of which must be in one of its two lists.

    Raises:
        UserError: the file cannot be used.
    """
    try:
        folds = read_json(fold.file)
    except (OSError, ValueError) as e:
        raise UserError(
            f"cannot be read: {e}",
            file=fold.file,
            remedy="nnU-Net writes it to its preprocessed data: name it with --splits",
        ) from e
    if not isinstance(folds, list) or not 0 <= fold.number < len(folds):
        count = len(folds) if isinstance(folds, list) else 0
        raise UserError(f"has no fold {fold.number}", file=fold.file, remedy=f"it has {count}, counted from 0")
    part_of: dict[str, str] = {}
    try:
        lists = {TRAIN: folds[fold.number]["train"], VALIDATION: folds[fold.number]["val"]}
        for part, listed in lists.items():
            for name in listed:
                if name not in names or part_of.setdefault(name, part) != part:
                    problem = "in both lists" if name in names else "no case of imagesTr"
                    raise UserError(f"fold {fold.number} names {shown(name)}, which is {problem}", file=fold.file)
    except (TypeError, KeyError) as e:
        raise UserError(f"fold {fold.number} must hold the lists `train` and `val`", file=fold.file) from e
    if left := sorted(names - set(part_of)):
        raise UserError(f"fold {fold.number} does not name {shown(left[0])}", file=fold.file, remedy="add it to a list")
    return part_of


def with_test_cases(cases: list[Case]) -> list[Case]:
    """Half of a site's validation patients (the smaller half) are drawn to be its test patients.

    Raises:
        UserError: a site has fewer than 2 of them.
    """
    tested: set[tuple[str, str]] = set()
    for site, own in by_site(cases).items():
        names = sorted({case.patient or case.name for case in own if case.part == VALIDATION})
        if len(names) < 2:
            raise UserError(
                f"the fold has {len(names)} of its patients to validate with, and half of them would be its test"
                " patients, because there are no imagesTs with labelsTs",
                site=site,
                remedy="leave out --fold: then a split is drawn",
            )
        order = np.random.default_rng(derive_seed(0, site, "fold")).permutation(len(names))
        tested |= {(site, names[i]) for i in order[: len(names) // 2]}
    return [
        replace(case, part=TEST)
        if case.part == VALIDATION and (case.site, case.patient or case.name) in tested
        else case
        for case in cases
    ]
