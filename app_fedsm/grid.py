"""From an experiment's YAML file to its rows and runs. Nothing is run here.

    title: what the table shows
    base: {task: retinal, rounds: 150}      # options of `fedsm run` with _ for -, and any `--set` key, dots and all
    seeds: [0, 1, 2]
    runs:                                   # the table's rows: options over the base
      FedSM: {method: fedsm}
      FedAvg: {from: FedSM, show: global}   # another model of the same run
    axes: {lam: [0.3, 0.7]}                 # every row once for each value

Also: `choose: lr` (lr may be a list, the best on validation images is taken), `table: candidates`, `leave_one_out`,
`costs: true` (also what a round costs, in bytes and seconds), `unfit: skip` (leave out rows that do not fit the number
of sites), `parallel`, `threads`, `data`, `out`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from app_fedsm.config import available, build_settings, parse, parse_setting, tracks_of
from fedsm.errors import UserError
from fedsm.settings import JobSettings

CENTRALIZED = "centralized"
SHOWS = {  # what a row shows -> the track it needs; the first that a method has is its best
    "super_model": "selector",
    "global": "global",
    "personal_own": "personal",
    "blend": "selector",
    "candidates": None,
}
_TRACK_OF = {"lam": "personal", "personal": "personal", "selector": "selector"}  # options of one track
_WORDS = ("task", "method", "personal", "selector")
_KEYS = {  # of the file: what kind of value, and its default
    "title": (str, ""), "base": (dict, {}), "runs": (dict, {}), "axes": (dict, {}), "seeds": (list, [0]),
    "choose": (str, None), "table": (str, "dice"), "leave_one_out": (bool, False), "costs": (bool, False),
    "unfit": (str, "refuse"), "parallel": (int, 1), "threads": (int, None), "data": (str, None), "out": (str, None),
}  # fmt: skip

Rows = Sequence[tuple[str, str]]


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


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the grid. `unseen`: the site that it does without."""

    source: str
    choice: Any
    seed: int
    unseen: str | None
    settings: JobSettings
    folder: Path

    @property
    def key(self) -> tuple:
        """What a table finds its results by."""
        return self.source, self.choice, self.seed


@dataclass(frozen=True)
class Experiment:
    """A whole grid; see the module's text for the file it comes from."""

    name: str
    title: str
    rows: list[Row]
    seeds: list[int]
    choose: str | None
    leave_one_out: bool
    costs: bool
    skip_unfit: bool
    parallel: int
    threads: int | None
    data: Path | None
    out: Path

    def runs(self, row: Row, choice: Any, seed: int, sites: list[str]) -> list[Run]:
        """The runs that give a row's score for one choice and seed: one, or one a site left out."""
        settings = job_settings(row.options, self.choose, choice, seed)
        folder = self.out / "runs" / slug(row.source)
        if self.choose:
            folder = folder / f"{self.choose}-{choice}"
        folder = folder / f"seed-{seed}"
        left_out = sites if self.leave_one_out else [None]
        return [Run(row.source, choice, seed, k, settings, folder / f"without-{k}" if k else folder) for k in left_out]


def slug(name: str) -> str:
    """A row's name as a folder's."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("._") or "row"


def job_settings(options: dict[str, Any], choose: str | None, choice: Any, seed: int) -> JobSettings:
    """The settings of one run.

    Raises:
        UserError: an unknown option, or a value that it cannot have.
    """
    options = options | ({choose: choice} if choose else {})
    plain = {key: value for key, value in options.items() if "." not in key}
    overrides = [f"{key}={json.dumps(value)}" for key, value in options.items() if "." in key]
    for key in _WORDS:
        if not isinstance(plain.get(key, ""), str):
            raise UserError(f"{key} must be a word, got {plain[key]!r}")
    task, method = plain.pop("task", None), plain.pop("method", "fedsm")
    if task is None:
        raise UserError("task is missing; set it in `base`, or with --task")
    settings = build_settings(task, _federated(method), overrides=overrides, seed=seed, **plain)
    return dataclasses.replace(settings, method=method)


def _federated(method: str) -> str:
    """The method of which centralized training has the network and the loss."""
    return "fedavg" if method == CENTRALIZED else method


def load_experiment(
    file: str, options: dict[str, Any] | None = None, given: dict[str, Any] | None = None, rows: Rows = ()
) -> Experiment:
    """Reads an experiment.

    Args:
        file: a YAML file's path, or the name of one in `app_fedsm/experiments`.
        options: options of jobs that win over the file's `base`.
        given: keys of the file that are replaced, such as `seeds`; None means not given.
        rows: (row's name, `KEY=VALUE`): options of single rows.

    Raises:
        UserError: one line that names the file.
    """
    where = f"experiment {file}"
    content = _read(file)
    try:
        return build_experiment(Path(file).stem, content, options or {}, given or {}, rows)
    except UserError as e:
        raise UserError(f"{where}: {e}") from e


def _read(file: str) -> Any:
    if file in available("experiments"):
        return parse(resources.files("app_fedsm") / "experiments" / f"{file}.yaml", f"experiment {file}")
    try:
        return parse(Path(file), f"experiment {file}")
    except OSError as e:
        known = ", ".join(available("experiments"))
        raise UserError(f"experiment {file}: {e.strerror}; give a YAML file or one of {known}") from e


def build_experiment(
    name: str, content: Any, options: dict[str, Any], given: dict[str, Any], rows: Rows = ()
) -> Experiment:
    """Builds an experiment from a file's content; see `load_experiment`."""
    if not isinstance(content, dict):
        raise UserError("expected a mapping")
    content = content | {key: value for key, value in given.items() if value is not None}
    if unknown := [key for key in content if key not in _KEYS]:
        raise UserError(f"unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    for key, value in content.items():
        kind = _KEYS[key][0]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{key!r} must be {kind.__name__}, got {value!r}")
    file = {key: content.get(key, default) for key, (_, default) in _KEYS.items()}
    _check_values(file)
    file["runs"] = {row: dict(own or {}) for row, own in file["runs"].items()}
    for row, item in rows:
        if row not in file["runs"]:
            raise UserError(f"--row {row!r} is not in the file; it has {', '.join(file['runs'])}")
        key, value = parse_setting(item)
        file["runs"][row][key] = value
    expanded = _rows(file, file["base"] | options)
    return Experiment(
        name, file["title"] or name, expanded, file["seeds"], file["choose"], file["leave_one_out"], file["costs"],
        file["unfit"] == "skip", file["parallel"], file["threads"], Path(file["data"]) if file["data"] else None,
        Path(file["out"] or f"runs/{name}"),
    )  # fmt: skip


def _check_values(file: dict) -> None:
    seeds = file["seeds"]
    if not seeds or len(set(seeds)) < len(seeds) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"seeds must be different whole numbers of at least 0, got {seeds}")
    for key, words in {"table": ("dice", "candidates"), "unfit": ("refuse", "skip")}.items():
        if file[key] not in words:
            raise UserError(f"{key} must be {' or '.join(words)}, got {file[key]!r}")
    for key in ("parallel", "threads"):
        if file[key] is not None and file[key] < 1:
            raise UserError(f"{key} must be at least 1, got {file[key]}")
    for axis, values in file["axes"].items():
        if not isinstance(values, list) or not values:
            raise UserError(f"axis {axis!r} needs a list of values, got {values!r}")
        if axis == file["choose"]:
            raise UserError(f"{axis!r} is an axis and chosen: keep one")
    for name, row in file["runs"].items():
        if not isinstance(name, str) or not isinstance(row, dict | None):
            raise UserError(f"row {name!r} needs a name and a mapping of options")


def _rows(file: dict, base: dict[str, Any]) -> list[Row]:
    """All rows: those of `runs`, each once for every point of the axes."""
    runs = file["runs"] or {"": {}}
    points = [dict(zip(file["axes"], p, strict=True)) for p in itertools.product(*file["axes"].values())]
    rows = [_row(name, runs, point, base, file) for name in runs for point in points]
    folders: dict[str, str] = {}
    for row in rows:
        if folders.setdefault(slug(row.name), row.name) != row.name:
            raise UserError(f"rows {folders[slug(row.name)]!r} and {row.name!r} would share a folder: rename one")
    return rows


def _row(name: str, runs: dict[str, dict], point: dict, base: dict[str, Any], file: dict) -> Row:
    own = dict(runs[name])
    show, source = own.pop("show", None), own.pop("from", name)
    if source != name:
        if source not in runs or "from" in runs[source]:
            raise UserError(f"row {name!r}: from: {source!r} is no row with runs of its own")
        if own:
            raise UserError(f"row {name!r}: with `from` only `show` can be set, not {next(iter(own))!r}")
        own = {key: value for key, value in runs[source].items() if key != "show"}
    suffix = ", ".join(f"{key}={value}" for key, value in point.items())
    label, source = (f"{n} {suffix}".strip() for n in (name, source))
    label = label or base.get("method", "fedsm")
    try:
        options = _fitting(base, own | point) | own | point
        choices = _choices(options, file["choose"])
        settings = [job_settings(options, file["choose"], choice, 0) for choice in choices]
        show = _show(show, file, settings[0])
    except UserError as e:
        raise UserError(f"row {label!r}: {e}") from e
    return Row(label, source or label, show, options, choices)


def _fitting(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The base without options of tracks that the row's method has not: `lam` means nothing to FedAvg."""
    for key in [*base, *own]:
        if not isinstance(key, str) or key in ("seed", "tracks", "overrides"):
            raise UserError(f"option {key!r} cannot be set here" + ("; use `seeds`" if key == "seed" else ""))
    method = (base | own).get("method", "fedsm")
    tracks = tracks_of(_federated(method)) if isinstance(method, str) else {}

    def fits(key: str) -> bool:
        track = _TRACK_OF.get(key) or (key.split(".")[1] if key.startswith("tracks.") else None)
        return track is None or track in tracks

    return {key: value for key, value in base.items() if fits(key)}


def _choices(options: dict[str, Any], choose: str | None) -> tuple:
    """Takes what is chosen out of the options."""
    if choose is None:
        return (None,)
    if choose not in options:
        raise UserError(f"choose: {choose}, but {choose} is not set; give a list of values")
    values = options.pop(choose)
    values = values if isinstance(values, list) else [values]
    if not values or not all(isinstance(v, str | int | float) for v in values) or len(set(values)) < len(values):
        raise UserError(f"{choose} needs different values to choose from, got {values}")
    return tuple(values)


def _show(asked: str | None, file: dict, settings: JobSettings) -> str:
    if asked is None and file["table"] == "candidates":
        asked = "candidates"
    if asked is None:
        asked = next(show for show, track in SHOWS.items() if track is None or track in settings.tracks)
    if asked not in SHOWS:
        raise UserError(f"show must be one of {', '.join(SHOWS)}, got {asked!r}")
    if SHOWS[asked] not in (None, *settings.tracks):
        raise UserError(f"show: {asked} needs a {SHOWS[asked]} track, which method {settings.method!r} has not")
    if asked == "blend" and not settings.blend:
        raise UserError("show: blend needs `blend: true` among the options")
    if file["leave_one_out"] and asked not in ("super_model", "global"):
        raise UserError(f"{asked} means nothing at a site that took no part; show super_model or global")
    return asked
