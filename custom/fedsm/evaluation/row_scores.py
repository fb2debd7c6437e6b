"""The Dice of single images, row by row of a table: what two runs need to be compared on the same images.

A file of them lies beside a run's results where the images are at hand: a federation's server never has them. It has
digests of the names of images and patients: they are the same in every run and name nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsm.core.limits import is_fraction
from fedsm.evaluation.image_scores import SUPER, ImageScores
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.paired import Differences, compare
from fedsm.evaluation.site_report import OWN, metrics_of, pairs_of
from fedsm.selectors.inference import GLOBAL

FILE = "image_scores.json"
ROWS = (SUPER, OWN, GLOBAL)


@dataclass(frozen=True)
class RowScores:
    """The N images of a site.

    Attributes:
        images: a digest of each image's name, in the order of the files.
        patients: the same of its patient.
        dice: row -> (N,) mean Dice over labels.
    """

    images: list[str]
    patients: list[str]
    dice: dict[str, np.ndarray]


Sites = dict[str, RowScores]


def row_scores(scores: Mapping[str, ImageScores]) -> Sites:
    """The rows of a run at each site, from its images' scores."""
    sites = {}
    for site, found in scores.items():
        metrics = {row: metrics_of(site, found, row) for row in ROWS}
        dice = {row: by[DICE].double().mean(1).numpy() for row, by in metrics.items() if by is not None}
        names, patients = ([_digest(site, word) for word in words] for words in (found.names, found.patients))
        sites[site] = RowScores(names, patients, dice)
    return sites


def differences(first: Sites, row: str, second: Sites, other: str) -> dict[str, Differences] | None:
    """Site -> first minus second; None where they lack a row, or were tested on different images."""
    if first.keys() != second.keys():
        return None
    found = {}
    for site, one in first.items():
        two = second[site]
        if row not in one.dice or other not in two.dice or one.images != two.images:
            return None
        found[site] = Differences(one.dice[row] - two.dice[other], one.patients)
    return found


def paired_rows(sites: Sites, seed: int) -> list[dict]:
    """The rows of one run against each other; see `compare`."""
    compared = []
    for first, second in pairs_of(set[str]().union(*(s.dice for s in sites.values()))):
        # A site that took no part has no model of its own.
        both = {site: s for site, s in sites.items() if first in s.dice and second in s.dice}
        found = differences(both, first, both, second)
        if found:
            compared.append({"first": first, "second": second} | compare(found, seed))
    return compared


def to_plain(sites: Sites, manifest: dict, part: str) -> dict:
    """The content of `FILE`."""
    return {
        "run_id": manifest.get("run_id"),
        "part": part,
        "sites": {
            site: {"images": s.images, "patients": s.patients, "dice": {r: v.tolist() for r, v in s.dice.items()}}
            for site, s in sites.items()
        },
    }


def from_plain(content: Any, run_id: str | None) -> Sites | None:
    """The scores of a file's content; None where it is no such file, or not of the test images of this run."""
    try:
        if content["run_id"] != run_id or content["part"] != "test":
            return None
        sites = {}
        for site, s in content["sites"].items():
            rows = {row: s["dice"][row] for row in ROWS if row in s["dice"]}
            lists = [s["images"], s["patients"], *rows.values()]
            if len({len(values) for values in lists}) != 1 or not lists[0]:
                return None
            if not all(is_fraction(value) for values in rows.values() for value in values):
                return None
            dice = {row: np.array(values, np.float64) for row, values in rows.items()}
            sites[site] = RowScores(list(map(str, s["images"])), list(map(str, s["patients"])), dice)
        return sites
    except (KeyError, TypeError, AttributeError):
        return None


def _digest(site: str, name: str) -> str:
    return hashlib.sha256(f"{site}/{name}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
