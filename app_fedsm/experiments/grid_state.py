"""A grid of runs on one data root: what is to be run, what has been, and the tables. No process is started here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app_fedsm.experiments.grid import Experiment, Run
from app_fedsm.experiments.grid_fair import ROWS_OF_IMAGES, compare_rows, paired_csv
from app_fedsm.experiments.grid_format import as_csv
from app_fedsm.experiments.grid_report import report
from app_fedsm.experiments.grid_rows import Row, slug
from app_fedsm.experiments.grid_run import UNSEEN, spec_of, state_of
from app_fedsm.experiments.grid_tables import choose, labels_of, table_lines
from fedsm.core.errors import UserError
from fedsm.core.files import write_text
from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES
from fedsm.evaluation.row_scores import from_plain


class Grid:
    """An experiment on a folder of sites: what is to be run, what has been, and the tables."""

    def __init__(self, experiment: Experiment, data: Path, sites: list[str]):
        self.experiment = experiment
        self.data = data
        self.sites = sites
        self.out = experiment.out
        self.cache = self.out / "cache"
        self.rows: list[Row] = []  # those that fit the sites
        self.notes = [f"left out: {why}" for why in experiment.left_out]
        self.outcomes: dict[tuple, list[dict]] = {}
        self.failed: dict[Path, str] = {}

    def spec(self, run: Run) -> dict:
        """The settings of the run's process."""
        return spec_of(run, self.data, self.sites, self.experiment.threads, self.cache)

    def check(self) -> None:
        """Checks that every run of every row could start; leaves out rows that do not fit, with `unfit: skip`.

        Raises:
            UserError: naming the first row that cannot.
        """
        from fedsm.nets import try_networks
        from fedsm.tracks import check_tracks

        tried = []
        for row in self.experiment.rows:
            runs = [r for c in row.choices for r in self.experiment.runs(row, c, self.experiment.seeds[0], self.sites)]
            try:
                for run in runs:
                    taking_part = self.spec(run)["sites"]
                    check_tracks(run.settings, taking_part)
                    if (shape := (run.settings.task, run.settings.size, len(taking_part))) not in tried:
                        try_networks(run.settings, len(taking_part))
                        tried.append(shape)
            except UserError as e:
                if not self.experiment.skip_unfit:
                    raise e.within(f"row {row.name!r}") from e
                self.notes.append(f"{row.name}: left out: {e}")
                continue
            self.rows.append(row)
        if not self.rows:
            raise UserError(f"no row fits these sites: {self.notes[len(self.experiment.left_out)]}")
        for run in [*self.first(), *(r for row in self.rows for c in row.choices for r in self.later(row, c))]:
            state_of(run.folder, self.spec(run))

    def first(self) -> list[Run]:
        """The runs of the first seed, with every choice."""
        seed = self.experiment.seeds[0]
        return unique(
            r for row in self.rows for c in row.choices for r in self.experiment.runs(row, c, seed, self.sites)
        )

    def rest(self) -> list[Run]:
        """The runs of the other seeds, with what was chosen for each row; none for a row whose first all failed."""
        chosen = {row.name: choose(row, self.experiment, self.outcomes)[0] for row in self.rows}
        finished = {key[:2] for key in self.outcomes}
        rows = [row for row in self.rows if (row.source, chosen[row.name]) in finished]
        return unique(r for row in rows for r in self.later(row, chosen[row.name]))

    def later(self, row: Row, choice: Any) -> list[Run]:
        """The runs of a row's other seeds with one choice."""
        return [r for s in self.experiment.seeds[1:] for r in self.experiment.runs(row, choice, s, self.sites)]

    def expected(self) -> int:
        """How many runs there will be, if rows that share runs choose the same value."""
        rest = (r for row in self.rows for r in self.later(row, row.choices[0]))
        return len(self.first()) + len(unique(rest))

    def collect(self, runs: list[Run]) -> list[Run]:
        """Reads the results of those that are finished; returns the others."""
        waiting = [run for run in runs if state_of(run.folder, self.spec(run)) != "done"]
        by_key: dict[tuple, list[Run]] = {}
        for run in runs:
            by_key.setdefault(run.key, []).append(run)
        for key, group in by_key.items():
            if not any(run in waiting for run in group):
                self.outcomes[key] = [_results(run.folder) for run in group]
        return waiting

    def write_tables(self) -> str:
        """Writes table.md, table.csv and those beside it (a label's, selection.csv, paired.csv); returns table.md."""
        notes = self.notes + [f"{folder.relative_to(self.out)} failed: {why}" for folder, why in self.failed.items()]
        text = report(self.experiment, self.outcomes, self.sites, notes)
        files = {"table.md": text, "table.csv": as_csv(table_lines(self.experiment, self.outcomes, self.sites))}
        if compared := compare_rows(self.experiment, self.outcomes):
            files["paired.csv"] = paired_csv(compared, self.experiment.compare.name)
        if self.experiment.leave_one_out:
            lines = table_lines(self.experiment, self.outcomes, self.sites, selection=True)
            files["selection.csv"] = as_csv(lines)
        else:
            for number, label in enumerate(labels_of(self.outcomes)):
                name = f"table_{slug(label)}"
                name = f"{name}_{number}" if f"{name}.csv" in files else name  # names that differ by what a slug drops
                files[f"{name}.csv"] = as_csv(table_lines(self.experiment, self.outcomes, self.sites, label=label))
        for name, content in files.items():
            write_text(self.out / name, content)
        return text


def unique(runs: Iterable[Run]) -> list[Run]:
    """Each folder once: rows may share runs."""
    return list({run.folder: run for run in runs}.values())


def _results(folder: Path) -> dict:
    results = json.loads((folder / "results.json").read_text())
    results[ROWS_OF_IMAGES] = from_plain(json.loads((folder / IMAGE_SCORES).read_text()), results.get("run_id"))
    if (folder / UNSEEN).is_file():
        results["unseen"] = json.loads((folder / UNSEEN).read_text())
    return results
