"""What is wrong with a site's scores of the candidates. They come from outside and are checked like weights are."""

from __future__ import annotations

from typing import Any

from fedsm.core.limits import is_fraction
from fedsm.core.settings import JobSettings
from fedsm.data.readers import FILE_KINDS
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, personal
from fedsm.selectors.policy import deltas_of, flips_of, shares_of, tries_majority
from fedsm.tracks import knows_distance, selection_rule

VALIDATION, TEST = "validation", "test"
_BOTH = {"images", "dice", "gammas", "argmax"}
_KEYS = {VALIDATION: _BOTH | {"mixtures", "deltas", "majorities"}, TEST: _BOTH | {"policy", "files"}}


def evaluation_problem(
    evaluation: Any, part: str, settings: JobSettings, sites: list[str], models: list[str], images: dict[str, int]
) -> str | None:
    """Why a site's scores cannot be used, or None.

    Args:
        evaluation: what the site sent: `validate_candidates` or `evaluate_candidates` and `files`.
        part: `validation` or `test`.
        settings: the job's settings.
        sites: all sites.
        models: the candidates that were sent, `selector` among them where there is one.
        images: the site's image counts, as registered.
    """
    networks = [m for m in models if m != "selector"]
    selects = "selector" in models and not set(map(personal, sites)) - set(models)
    try:
        if set(evaluation) != _KEYS[part]:
            return f"{part} evaluation is incomplete"
        if evaluation["images"] != images[part] or set(evaluation["dice"]) != set(networks):
            return f"{part} evaluation is incomplete"
        reason = _common_problem(evaluation, part, settings, sites, networks, selects)
        if reason is None and part == VALIDATION:
            reason = _grid_problem(evaluation, settings, selects)
        elif reason is None:
            reason = _policy_problem(evaluation, settings, networks, selects)
        return reason
    except (KeyError, TypeError, AttributeError, IndexError):
        return "evaluation is malformed"


def gammas_of(settings: JobSettings) -> list[float | None]:
    """The gammas that sites try; `[None]` for a selector without a threshold."""
    return list(settings.gammas) if selection_rule(settings) == THRESHOLD else [None]


def is_census(counts: dict, names: list[str], total: int) -> bool:
    """Whether there is a whole number for each name, and they add up to a total."""
    whole = all(_is_count(n, total) for n in counts.values())
    return whole and set(counts) == set(names) and sum(counts.values()) == total


def _common_problem(
    found: dict, part: str, settings: JobSettings, sites: list[str], networks: list[str], selects: bool
) -> str | None:
    """What both parts have: Dice of the networks, hard selection at each gamma, first choices."""
    if not selects and found["gammas"]:
        return f"{part} evaluation tells of a selector that there is not"
    rows = [found["dice"][m] for m in networks] + [row["dice"] for row in found["gammas"]]
    if settings.blend and gammas_of(settings) != [None]:
        rows += [row["blend"] for row in found["gammas"]]
    if not all(_is_by_label(row, settings) for row in rows):
        return f"{part} Dice is not in [0, 1]"
    if not selects:
        return None
    if not _are([row["gamma"] for row in found["gammas"]], gammas_of(settings)):
        return f"{part} evaluation has other gammas"
    choices = sites if selection_rule(settings) == THRESHOLD else [*sites, GLOBAL]
    counts = [(found["argmax"], choices)] + [(row["selected"], networks) for row in found["gammas"]]
    if not all(is_census(count, names, found["images"]) for count, names in counts):
        return f"{part} counts do not add up to the site's images"
    return None


def _grid_problem(found: dict, settings: JobSettings, selects: bool) -> str | None:
    """What is tried on validation images."""
    has_threshold = selects and selection_rule(settings) == THRESHOLD
    shares = shares_of(settings) if has_threshold else [0.0]
    tried = [value for flip in flips_of(settings) for share in shares for value in (share, flip)]
    if not _are([row[name] for row in found["mixtures"] for name in ("share", "flip")], tried):
        return "validation evaluation has other mixtures"
    votes = selects and selection_rule(settings) != MIXTURE and tries_majority(settings)
    expected = tried if votes and found["majorities"] else []  # a site without volumes sends none
    if not _are([row[name] for row in found["majorities"] for name in ("share", "flip")], expected):
        return "validation evaluation has other majorities"
    length = len(settings.gammas) if has_threshold else 1
    deltas = deltas_of(settings) if has_threshold and knows_distance(settings) else []
    if not _are([row["delta"] for row in found["deltas"]], [*deltas, None] if deltas else []):
        return "validation evaluation has other deltas"
    lists = [(row["dice"], length) for row in (*found["mixtures"], *found["majorities"])]
    lists += [(row["dice"], len(shares)) for row in found["deltas"]]
    if not all(len(dice) == count and all(map(is_fraction, dice)) for dice, count in lists):
        return "validation Dice is not in [0, 1]"
    foreign = [row["foreign"] for row in found["deltas"]]
    if not all(_is_count(n, found["images"]) for n in foreign) or foreign != sorted(foreign, reverse=True):
        return "validation counts of foreign images are malformed"
    return None


def _policy_problem(found: dict, settings: JobSettings, networks: list[str], selects: bool) -> str | None:
    """What is said of test images, once the policy is known."""
    if found["files"] not in FILE_KINDS:
        return "evaluation does not say whether its images are pictures or volumes"
    row = found["policy"]
    if not selects:
        return None if row is None else "test evaluation tells of a selector that there is not"
    if not _is_by_label(row["dice"], settings):
        return "test Dice is not in [0, 1]"
    if not is_census(row["selected"], networks, found["images"]):
        return "test counts do not add up to the site's images"
    if row["foreign"] is not None and not _is_count(row["foreign"], found["images"]):
        return "test counts of foreign images are malformed"
    return None


def _are(values: list, expected: list) -> bool:
    """Whether these are the expected values and of their types. They become the policy: False == 0.0, but no site takes
    it for a gamma."""
    return [(type(value), value) for value in values] == [(type(value), value) for value in expected]


def _is_by_label(row: dict, settings: JobSettings) -> bool:
    return set(row) == set(settings.task.labels) and all(map(is_fraction, row.values()))


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
