"""What is wrong with a site's report of a privacy audit. It comes from outside, so every value is checked."""

from __future__ import annotations

from typing import Any

from fedsm.core.limits import MOST_LOSS, is_fraction, is_number, is_whole
from fedsm.core.settings import JobSettings
from fedsm.evaluation.membership import CALIBRATED, LOSS, attacked_models, references_of

_KEYS = {"members", "others", "references", "models"}
_MODEL = {"member_loss", "other_loss", LOSS, CALIBRATED}


def audit_problem(report: Any, manifest: dict, settings: JobSettings, site: str, part: str) -> str | None:
    """Why a site's report cannot be used, or None.

    Args:
        report: what the site sent; see `fedsm.evaluation.membership.audit_of`.
        manifest: the super model's.
        settings: the settings that it was trained with.
        site: whose report it is.
        part: not used: an audit is of training and test images.
    """
    try:
        if set(report) != _KEYS:
            return "its audit is incomplete"
        then = manifest.get("images", {}).get(site, {})
        for side, name in (("members", "train"), ("others", "test")):
            if reason := _count_problem(report[side], then.get(name), settings, name):
                return reason
        references = references_of(manifest["networks"], site)
        if not is_whole(report["references"], 0, len(references)) or report["references"] != len(references):
            return "it has other reference models"
        if set(report["models"]) != set(attacked_models(manifest["networks"], site)):
            return "it is of other models"
        rows = report["models"].values()
        return next((reason for row in rows if (reason := _row_problem(row, bool(references)))), None)
    except (KeyError, TypeError, AttributeError):
        return "its audit is malformed"


def _count_problem(counts: dict, then: int | None, settings: JobSettings, part: str) -> str | None:
    if set(counts) != {"images", "patients"} or not is_whole(counts["images"], 1, settings.max_images):
        return "counts of images and patients are malformed"
    if not is_whole(counts["patients"], 1, counts["images"]):
        return "counts of images and patients are malformed"
    if then is not None and then != counts["images"]:
        return (
            f"{counts['images']} {part} images, but {then} in training: its files have changed since, so that images"
            " may have changed sides"
        )
    return None


def _row_problem(row: dict, has_references: bool) -> str | None:
    if set(row) != _MODEL:
        return "its attacks are others"
    if not all(
        isinstance(row[key], float) and is_number(row[key], 0, MOST_LOSS) for key in ("member_loss", "other_loss")
    ):
        return "a loss is out of range"
    if (row[CALIBRATED] is not None) != has_references:
        return "its attacks are others"
    found = [row[name] for name in (LOSS, CALIBRATED) if row[name] is not None]
    return None if all(map(_is_interval, found)) else "an AUC is out of range"


def _is_interval(value: dict) -> bool:
    if set(value) != {"auc", "low", "high"} or not is_fraction(value["auc"]):
        return False
    bounds = (value["low"], value["high"])
    return bounds == (None, None) or (all(map(is_fraction, bounds)) and bounds[0] <= bounds[1])
