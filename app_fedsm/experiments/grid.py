"""From an experiment's YAML file to its rows and runs. Nothing is run here.

    title: what the table shows
    base: {task: retinal, rounds: 150}      # options of `fedsm run` with _ for -, and any `--set` key, dots and all
    seeds: [0, 1, 2]
    runs:                                   # the table's rows: options over the base
      FedSM: {method: fedsm}
      FedAvg: {from: FedSM, show: global}   # another model of the same run
    axes: {lam: [0.3, 0.7]}                 # every row once for each value

Also: `choose: lr` (lr may be a list, the best on validation images is taken), `table: candidates`, `leave_one_out`,
`costs: true` (also what a run costs, in bytes and seconds), `unfit: skip` (values of an axis that mean nothing to a
row's method are dropped, and rows that do not fit the number of sites are left out), `parallel`, `threads`, `data`,
`out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from app_fedsm.config.build import available, parse, parse_setting
from app_fedsm.experiments.grid_rows import Row, expand_rows, job_settings, slug
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings

_KEYS = {  # of the file: what kind of value, and its default
    "title": (str, ""), "base": (dict, {}), "runs": (dict, {}), "axes": (dict, {}), "seeds": (list, [0]),
    "choose": (str, None), "table": (str, "dice"), "leave_one_out": (bool, False), "costs": (bool, False),
    "unfit": (str, "refuse"), "parallel": (int, 1), "threads": (int, None), "data": (str, None), "out": (str, None),
}  # fmt: skip

Rows = Sequence[tuple[str, str]]


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
    left_out: list[str]  # rows that were, and why
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


def load_experiment(
    file: str, options: dict[str, Any] | None = None, given: dict[str, Any] | None = None, rows: Rows = ()
) -> Experiment:
    """Reads an experiment.

    Args:
        file: a YAML file's path, or the name of one in `app_fedsm/config/experiments`.
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
        return parse(resources.files("app_fedsm.config") / "experiments" / f"{file}.yaml", f"experiment {file}")
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
    expanded, left_out = expand_rows(file, file["base"] | options)
    return Experiment(
        name, file["title"] or name, expanded, file["seeds"], file["choose"], file["leave_one_out"], file["costs"],
        file["unfit"] == "skip", left_out, file["parallel"], file["threads"],
        Path(file["data"]) if file["data"] else None, Path(file["out"] or f"runs/{name}"),
    )  # fmt: skip


def _check_values(file: dict) -> None:
    seeds = file["seeds"]
    if not seeds or len(set(seeds)) < len(seeds) or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"seeds must be different whole numbers of at least 0, got {seeds}")
    for key, words in {"table": ("dice", "candidates"), "unfit": ("refuse", "skip")}.items():
        if file[key] not in words:
            raise UserError(f"{key} must be {' or '.join(words)}, got {file[key]!r}")
    if file["choose"] in ("method", "task"):
        raise UserError(f"a {file['choose']} cannot be chosen: make each one a row")
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
