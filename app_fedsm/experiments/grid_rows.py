"""The rows of an experiment: each row's options over the base, once for every point of the axes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from app_fedsm.config.build import TRACK_OF, Unfit, build_settings, tracks_of, why_unfit
from app_fedsm.config.names import CENTRALIZED, available
from app_fedsm.experiments.experiment_file import ExperimentFile
from fedsm.core.errors import UserError
from fedsm.core.model import known_words
from fedsm.core.settings import JobSettings
from fedsm.selectors.inference import THRESHOLD
from fedsm.tracks import selection_rule

SHOWS = {  # what a row shows -> the track it needs; the first that a method has is its best
    "super_model": "selector",
    "global": "global",
    "personal_own": "personal",
    "algorithm2": "selector",
    "blend": "selector",
    "candidates": None,
}
_WORDS = ("task", "method", "personal", "selector", "preset")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: its name.
        source: the row whose runs it shows; its own name, unless `from` says another.
        show: which model's score, a key of `SHOWS`.
        options: options of the runs, without the seed and without what is chosen.
        choices: the values to choose from; (None,) where nothing is chosen.
    """

    name: str
    source: str
    show: str
    options: dict[str, Any]
    choices: tuple = (None,)


def slug(name: str) -> str:
    """A row's name as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("._") or "row"


def job_settings(options: dict[str, Any], choose: str | None, choice: Any, seed: int) -> JobSettings:
    """The settings of one run.

    Raises:
        UserError: an unknown option, or a value that it cannot have.
    """
    options = options | ({choose: choice} if choose else {})
    plain = {key: value for key, value in options.items() if "." not in key}
    dotted = {key: value for key, value in options.items() if "." in key}
    for key in _WORDS:
        if not isinstance(plain.get(key, ""), str):
            raise UserError(f"{key} must be a word, got {plain[key]!r}")
    task, method = plain.pop("task", None), plain.pop("method", "fedsm")
    if task is None:
        raise UserError("task is missing", remedy="set it in `base`, or with --task")
    settings = build_settings(task, federated(method), dotted=dotted, seed=seed, **plain)
    return settings.replace(method=method)


def federated(method: str) -> str:
    """The method itself; for centralized training the method whose network and loss it uses.

    Raises:
        UserError: unknown method.
    """
    if method not in (known := [*available("methods"), CENTRALIZED]):
        raise UserError(f"unknown method {method!r}", remedy=known_words(method, known))
    return {CENTRALIZED: "fedavg"}.get(method, method)


def expand_rows(file: ExperimentFile, base: dict[str, Any]) -> tuple[list[Row], list[str]]:
    """All rows: those of `runs`, each once for every point of the axes; and those left out because they do not fit."""
    runs = {name: own or {} for name, own in file.runs.items()} or {"": {}}
    points = [dict(zip(file.axes, p, strict=True)) for p in itertools.product(*file.axes.values())]
    rows: list[Row] = []
    left_out: list[str] = []
    for name, point in itertools.product(runs, points):
        try:
            row = _row(name, runs, point, base, file)
            rows += [row] if row.name not in [r.name for r in rows] else []
        except Unfit as e:
            if file.unfit != "skip":
                remedy = "`unfit: skip` leaves such rows out, or such values of an axis"
                raise UserError(e.message, remedy=remedy) from e
            left_out.append(str(e))
    if not rows:
        raise UserError(f"no row fits: {left_out[0]}")
    for key in [*base, *file.axes]:
        if key != file.choose and not any(key in row.options for row in rows):
            raise UserError(f"option {key!r} means nothing to any row: it would be ignored")
    folders: dict[str, str] = {}
    for row in rows:
        if folders.setdefault(slug(row.name), row.name) != row.name:
            raise UserError(
                f"rows {folders[slug(row.name)]!r} and {row.name!r} would share a folder", remedy="rename one"
            )
    return rows, left_out


def _row(name: str, runs: dict[str, dict], point: dict, base: dict[str, Any], file: ExperimentFile) -> Row:
    own = dict(runs[name])
    show, source = own.pop("show", None), own.pop("from", name)
    for key, word in (("show", show), ("from", source)):
        if not isinstance(word, str | None):
            raise UserError(f"row {name!r}: {key} must be a word, got {word!r}")
    if source != name:
        if source not in runs or "from" in runs[source]:
            raise UserError(f"row {name!r}: from: {source!r} is no row with runs of its own")
        if own:
            raise UserError(f"row {name!r}: with `from` only `show` can be set, not {next(iter(own))!r}")
        own = {key: value for key, value in runs[source].items() if key != "show"}
    own = {key: value for key, value in own.items() if key not in point}
    try:
        if file.unfit == "skip":  # FedAvg has no lam: on an axis of lam it is one row, not one per value
            point = {key: value for key, value in point.items() if key in _fitting(base | point, own, None)}
    except UserError as e:
        raise e.within(f"row {name!r}") from e
    suffix = ", ".join(f"{key}={value}" for key, value in point.items())
    label, source = (f"{n} {suffix}".strip() for n in (name, source))
    label = label or base.get("method", "fedsm")
    try:
        options = _fitting(base, own | point, file.choose) | own | point
        choices = _choices(options, file.choose)
        settings = [job_settings(options, file.choose, choice, 0) for choice in choices]
        shows = {choice: _show(show, file, s) for choice, s in zip(choices, settings, strict=True)}
        if len({(selection_rule(s), shown) for s, shown in zip(settings, shows.values(), strict=True)}) > 1:
            raise UserError(f"the {file.choose}s to choose from are read in different ways", remedy="make them rows")
    except UserError as e:
        raise e.within(f"row {label!r}") from e
    return Row(label, source or label, shows[choices[0]], options, choices)


def _fitting(base: dict[str, Any], own: dict[str, Any], choose: str | None) -> dict[str, Any]:
    """The base without options that mean nothing to the row's method: `lam` to FedAvg, `selector` to FedSM-extra."""
    for key in [*base, *own]:
        if not isinstance(key, str) or key in ("seed", "tracks", "overrides"):
            raise UserError(f"option {key!r} cannot be set here", remedy="use `seeds`" if key == "seed" else None)
    method = (base | own).get("method", "fedsm")
    if not isinstance(method, str):
        return base
    method, tracks = federated(method), tracks_of(federated(method))
    kinds = {key: own.get(key, base.get(key)) for key in ("personal", "selector")}
    kinds = {key: kind for key, kind in kinds.items() if isinstance(kind, str)}  # several may be there to choose from
    kinds = {key: kind for key, kind in kinds.items() if key in own or not why_unfit(key, method, **kinds)}

    def problem(key: str) -> str | None:
        if key in TRACK_OF:
            return why_unfit(key, method, **kinds)
        return "" if key.startswith("tracks.") and key.split(".")[1] not in tracks else None

    if choose in base and choose not in own and (why := problem(choose)) is not None:
        raise Unfit(why or f"method {method!r} has no {choose}")
    return {key: value for key, value in base.items() if problem(key) is None}


def _choices(options: dict[str, Any], choose: str | None) -> tuple:
    """Removes the option that is chosen from the options, and returns its values."""
    if choose is None:
        return (None,)
    if choose not in options:
        raise UserError(f"choose: {choose}, but {choose} is not set", remedy="give a list of values")
    values = options.pop(choose)
    values = values if isinstance(values, list) else [values]
    if not values or not all(isinstance(v, str | int | float) for v in values) or len(set(values)) < len(values):
        raise UserError(f"{choose} needs different values to choose from, got {values}")
    return tuple(values)


def _show(asked: str | None, file: ExperimentFile, settings: JobSettings) -> str:
    if asked is None and file.table == "candidates":
        asked = "candidates"
    if asked is None:
        asked = next(show for show, track in SHOWS.items() if track is None or track in settings.tracks)
    if asked not in SHOWS:
        raise UserError(f"show must be one of {', '.join(SHOWS)}, got {asked!r}")
    if SHOWS[asked] not in (None, *settings.tracks):
        raise UserError(f"show: {asked} needs a {SHOWS[asked]} track, which method {settings.method!r} does not have")
    if asked in ("algorithm2", "blend") and selection_rule(settings) != THRESHOLD:
        raise Unfit(f"the {selection_rule(settings)} selector has no threshold: there is no {asked} to show")
    if asked == "algorithm2" and settings.selection == "algorithm2":
        asked = "super_model"
    if asked == "blend" and not settings.blend:
        raise UserError("show: blend needs `blend: true` among the options")
    if file.leave_one_out and asked not in ("super_model", "global"):
        raise UserError(f"{asked} means nothing at a site that took no part", remedy="show super_model or global")
    return asked
