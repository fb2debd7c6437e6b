"""Train, validation and test parts of a site: 0.5 / 0.25 / 0.25 by patient, fixed by a seed."""

from __future__ import annotations

import hashlib

import numpy as np

from fedsm.errors import UserError

PARTS = ("train", "validation", "test")


def derive_seed(*parts) -> int:
    """A 63-bit seed from any values: the same on every machine, unrelated for unrelated values."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def split_by_patient(patients: list[str], seed: int, site: str) -> dict[str, list[int]]:
    """Splits a site's pairs so that no patient is in two parts.

    Args:
        patients: the patient of each pair.
        seed: the job's seed.
        site: the site's name; part of the seed, and named in the error.

    Returns:
        part -> indices into `patients`; every part holds at least one patient.

    Raises:
        UserError: fewer than 3 patients.
    """
    names = sorted(set(patients))
    if len(names) < 3:
        raise UserError(
            f"site {site!r}: {len(names)} patients cannot be split into train, validation and test;"
            f" at least 3 are needed"
        )
    order = np.random.default_rng(derive_seed(seed, site, "split")).permutation(len(names))
    n_validation = max(1, round(len(names) / 4))
    n_train = max(1, len(names) - 2 * n_validation)
    bounds = (0, n_train, n_train + n_validation, len(names))
    part_of = {names[i]: part for p, part in enumerate(PARTS) for i in order[bounds[p] : bounds[p + 1]]}
    return {part: [i for i, patient in enumerate(patients) if part_of[patient] == part] for part in PARTS}
