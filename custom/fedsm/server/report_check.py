"""What is wrong with a site's report on a super model. It comes from outside, so every value is checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedsm.core.limits import is_fraction
from fedsm.core.settings import JobSettings
from fedsm.evaluation.calibration import BINS
from fedsm.evaluation.image_scores import SUPER
from fedsm.evaluation.metrics import HD95, METRICS, VOLUME_METRICS
from fedsm.evaluation.site_report import MEAN, OWN, pairs_of
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, personal
from fedsm.server.evaluation_check import is_census
from fedsm.tracks import selection_rule

_UNITS = ("px", "mm", "px or mm")
_INTERVAL = {"mean", "low", "high", "error"}
_MOST_DISTANCE = 1e6  # px or mm: means of larger ones overflow


def report_problem(report: Any, manifest: dict, settings: JobSettings, site: str, part: str) -> str | None:
    """Why a site's report cannot be used, or None.

    Args:
        report: what the site sent; see `fedsm.evaluation.site_report.report_of`.
        manifest: the super model's.
        settings: the settings that it was trained with.
        site: whose report it is.
        part: the part of its images that was asked for.
    """
    try:
        images = report["images"]
        if not _is_count(images, settings.max_images) or not _is_count(report["patients"], images):
            return "counts of images and patients are malformed"
        then = manifest.get("images", {}).get(site, {}).get(part, images)
        if then != images:
            return (
                f"{images} {part} images, but {then} in training: its files have changed since, so that images may have"
                " changed sides; restore them or use --part all"
            )
        if report["unit"] not in _UNITS:
            return "its unit of distances is unknown"
        return (
            _scores_problem(report, manifest, site)
            or _volumes_problem(report, manifest, settings, site)
            or _selection_problem(report, manifest, settings, site)
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        return "its report is malformed"


def _scores_problem(report: dict, manifest: dict, site: str) -> str | None:
    expected = _models_of(manifest, site)
    if problem := _models_problem(report["models"], expected, manifest["labels"], METRICS):
        return problem
    paired = report["paired"]
    if [(entry["first"], entry["second"]) for entry in paired] != pairs_of(expected):
        return "its paired comparisons are others"
    return None if all(_is_interval(entry, 1.0, -1.0) for entry in paired) else "a difference is out of range"


def _volumes_problem(report: dict, manifest: dict, settings: JobSettings, site: str) -> str | None:
    found = report["volumes"]
    if found is None:
        return None
    if not _is_count(found["volumes"], report["images"]) or not _is_count(found["patients"], found["volumes"]):
        return "counts of volumes and patients are malformed"
    if found["tolerance"] != settings.task.surface_tolerance:
        return "its surfaces have another tolerance"
    return _models_problem(found["models"], _models_of(manifest, site), manifest["labels"], VOLUME_METRICS)


def _models_of(manifest: dict, site: str) -> list[str]:
    """The rows that a site's scores have."""
    expected = [name for name in manifest["networks"] if name != "selector"]
    expected += [SUPER] if _selects(manifest) else []
    return expected + ([OWN] if personal(site) in expected else [])


def _models_problem(models: dict, expected: list[str], names: list[str], metrics: Sequence[str]) -> str | None:
    if set(models) != set(expected):
        return "scores of models are missing"
    labels = {*names, MEAN}
    for by_metric in models.values():
        if set(by_metric) != set(metrics) or any(set(by) != labels for by in by_metric.values()):
            return "scores are incomplete"
        for metric, by_label in by_metric.items():
            most = _MOST_DISTANCE if metric == HD95 else 1.0
            if any(set(value) != _INTERVAL for value in by_label.values()):
                return "scores are incomplete"
            if not all(_is_interval(value, most) for value in by_label.values()):
                return f"a value of {metric} is out of range"
    return None


def _is_interval(value: dict, most: float, least: float = 0.0) -> bool:
    mean, bounds = value["mean"], [value[key] for key in ("low", "high", "error")]
    if not _is_number(mean, most, least):
        return False
    if bounds == [None] * 3:
        return True
    low, high, error = bounds
    known = _is_number(low, most, least) and _is_number(high, most, least) and _is_number(error, most)
    return known and low <= high


def _selection_problem(report: dict, manifest: dict, settings: JobSettings, site: str) -> str | None:
    if not _selects(manifest):
        empty = report["gammas"] == [] and report["selected"] is report["confusion"] is report["reliability"] is None
        return None if empty else "it tells of a selector that there is not"
    images, rule = report["images"], selection_rule(settings)
    models = [GLOBAL, *map(personal, manifest["sites"])]
    gammas = list(settings.gammas) if rule == THRESHOLD else []
    if [row["gamma"] for row in report["gammas"]] != gammas:
        return "its gammas are others"
    if not all(is_fraction(row["dice"]) for row in report["gammas"]):
        return "Dice at a gamma is not in [0, 1]"
    censuses = [(row["selected"], models) for row in report["gammas"]]
    censuses.append((report["confusion"], models[1:] if rule == THRESHOLD else models))
    if rule != MIXTURE:
        censuses.append((report["selected"], models))
    elif report["selected"] is not None:
        return "it tells of models selected from a mixture"
    if not all(is_census(counts, names, images) for counts, names in censuses):
        return "counts do not add up to its images"
    return _reliability_problem(report["reliability"], images, site in manifest["sites"])


def _reliability_problem(found: Any, images: int, known: bool) -> str | None:
    if not known:
        return None if found is None else "it tells how often the selector knows it, which it cannot"
    bins = found["bins"]
    right = len(bins) == BINS and sum(b["images"] for b in bins) == images
    for i, b in enumerate(bins):
        right = right and [b["low"], b["high"]] == [i / BINS, (i + 1) / BINS] and _is_count(b["images"], images, 0)
        right = right and (not b["images"] or is_fraction(b["confidence"]) and is_fraction(b["accuracy"]))
    return None if right else "its calibration is malformed"


def _selects(manifest: dict) -> bool:
    """Whether the super model has a selector and all models that it may name."""
    return not {"selector", GLOBAL, *map(personal, manifest["sites"])} - set(manifest["networks"])


def _is_count(value: object, most: int, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object, most: float, least: float = 0.0) -> bool:
    return isinstance(value, float) and math.isfinite(value) and least <= value <= most
