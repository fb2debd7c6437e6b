"""From an experiment's file (`experiment_file`) to its rows and runs. Nothing is run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from app_fedsm.config.build import parse_setting
from app_fedsm.config.names import available
from app_fedsm.experiments.experiment_file import ExperimentFile
from app_fedsm.experiments.grid_rows import Row, expand_rows, job_settings, slug
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.yaml_file import YamlFile, read_yaml

Rows = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the grid. `unseen`: the site that takes no part in it."""

    source: str
    choice: Any
    seed: int
    unseen: str | None
    settings: JobSettings
    folder: Path

    @property
    def key(self) -> tuple:
        """The key under which a table finds its results."""
        return self.source, self.choice, self.seed


@dataclass(frozen=True)
class Experiment:
    """A whole grid; see `experiment_file` for the file it comes from."""

    name: str
    title: str
    rows: list[Row]
    seeds: list[int]
    choose: str | None
    compare: Row
    leave_one_out: bool
    costs: bool
    skip_unfit: bool
    left_out: list[str]  # rows that were left out, and why
    parallel: int
    threads: int | None
    data: Path | None
    out: Path

    def runs(self, row: Row, choice: Any, seed: int, sites: list[str]) -> list[Run]:
        """The runs that give a row's score for one choice and seed: one, or one per site that is left out."""
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
    source = _read(file)
    try:
        return build_experiment(Path(file).stem, source.content, options or {}, given or {}, rows, source)
    except UserError as e:
        if e.file:
            raise
        raise UserError(e.message, file=source.file, remedy=e.remedy) from e


def _read(file: str) -> YamlFile:
    known = available("experiments")
    if file in known:
        return read_yaml(resources.files("app_fedsm.config") / "experiments" / f"{file}.yaml")
    return read_yaml(Path(file), remedy=f"give a YAML file or one of {', '.join(known)}")


def build_experiment(
    name: str,
    content: Any,
    options: dict[str, Any],
    given: dict[str, Any],
    rows: Rows = (),
    source: YamlFile | None = None,
) -> Experiment:
    """Builds an experiment from a file's content; see `load_experiment`."""
    given = {key: value for key, value in given.items() if value is not None}
    if source is not None:  # values from elsewhere have no line in the file
        source = replace(source, lines={path: n for path, n in source.lines.items() if path[0] not in given})
    file = ExperimentFile.from_dict(content | given if isinstance(content, dict) else content, source=source)
    runs = {row: dict(own or {}) for row, own in file.runs.items()}
    for row, item in rows:
        if row not in runs:
            raise UserError(f"--row {row!r} is not in the file", remedy=f"it has {', '.join(runs)}")
        key, value = parse_setting(item)
        runs[row][key] = value
    file = file.replace(runs=runs)
    expanded, left_out = expand_rows(file, file.base | options)
    return Experiment(
        name, file.title or name, expanded, file.seeds, file.choose, _reference(file, expanded), file.leave_one_out,
        file.costs, file.unfit == "skip", left_out, file.parallel, file.threads,
        Path(file.data) if file.data else None, Path(file.out or f"runs/{name}"),
    )  # fmt: skip


def _reference(file: ExperimentFile, rows: list[Row]) -> Row:
    """The row that the others are compared with.

    Raises:
        UserError: there is no such row.
    """
    if file.compare is None:
        return next((row for row in rows if row.show == "super_model"), rows[0])
    if found := next((row for row in rows if row.name == file.compare), None):
        return found
    raise UserError(f"compare: {file.compare!r} is no row", remedy=f"it may be {', '.join(row.name for row in rows)}")
