"""Rows of an experiment against each other: on the same images, and against what a site reaches alone."""

from __future__ import annotations

import numpy as np

from app_fedsm.config.names import CENTRALIZED
from app_fedsm.experiments.grid import Experiment
from app_fedsm.experiments.grid_rows import Row
from app_fedsm.experiments.grid_tables import Outcomes, choose, table_lines
from fedsm.core.tables import csv_table, markdown_table
from fedsm.evaluation.below_local import LOCAL, below_local_text, sites_below
from fedsm.evaluation.paired import Differences, compare
from fedsm.evaluation.paired_table import NOTE, paired_cells, paired_head
from fedsm.evaluation.row_scores import Sites, differences
from fedsm.evaluation.tables import ALL_IMAGES, CLIENT_AVG

ROWS_OF_IMAGES = "image_scores"  # in a run's results: its Dice of single images (`Sites`), None where unknown


def compare_rows(experiment: Experiment, outcomes: Outcomes) -> dict[str, dict]:
    """Row's name -> `experiment.compare` minus that row, over the test images of all seeds that both have.

    A patient who is a test patient with several seeds is one patient: all differences of that patient are drawn
    together, and Wilcoxon's test takes their mean.

    Returns:
        as `fedsm.evaluation.paired.compare`, and `seeds`. Rows that cannot be compared are left out.
    """
    compared = {}
    scores = {row.name: _scores(experiment, outcomes, row) for row in experiment.rows}
    reference = experiment.compare
    for row in experiment.rows:
        if row.name == reference.name:
            continue
        pairs = [
            differences(one, reference.show, two, row.show)
            for one, two in zip(scores[reference.name], scores[row.name], strict=True)
        ]
        if found := [pair for pair in pairs if pair]:
            compared[row.name] = compare(_joined(found)) | {"seeds": len(found)}
    return compared


def _scores(experiment: Experiment, outcomes: Outcomes, row: Row) -> list[Sites]:
    """For each seed the scores of a row's runs, of all sites that were left out; empty where they are not known."""
    choice, _ = choose(row, experiment, outcomes)
    scores: list[Sites] = []
    for seed in experiment.seeds:
        scores.append({})
        for results in outcomes.get((row.source, choice, seed), []):
            scores[-1] |= results.get(ROWS_OF_IMAGES) or {}
    return scores


def _joined(seeds: list[dict[str, Differences]]) -> dict[str, Differences]:
    joined = {}
    for site in seeds[0]:
        parts = [pair[site] for pair in seeds if site in pair]
        patients = [patient for part in parts for patient in part.patients]
        joined[site] = Differences(np.concatenate([part.values for part in parts]), patients)
    return joined


def paired_text(experiment: Experiment, outcomes: Outcomes, sites: list[str]) -> str:
    """The part of table.md that compares the rows; empty where there is nothing to compare."""
    compared = compare_rows(experiment, outcomes)
    if not compared:
        return ""
    reference = experiment.compare.name
    rows = [
        [*paired_cells(f"{reference} - {name}", found, sites), str(found["images"]), str(found["seeds"])]
        for name, found in compared.items()
    ]
    text = f"\n{NOTE}\n\n" + markdown_table([*paired_head(sites), "images", "seeds"], rows) + "\n"
    others = [row.name for row in experiment.rows if row.name not in (*compared, reference)]
    why = "not finished, without scores of single images, or tested on others"
    return text + (f"\nNot compared: {', '.join(others)} ({why}).\n" if others else "")


def paired_csv(compared: dict[str, dict], reference: str) -> str:
    """The same for other programs: one line per row and site, or average."""
    lines = []
    for name, found in compared.items():
        values = found["per_site"] | {CLIENT_AVG: found["client_avg"], ALL_IMAGES: found["global"] | {"p": found["p"]}}
        for site, value in values.items():
            numbers = [value.get(key) for key in ("mean", "low", "high", "p")]
            counts = [value.get(key, found[key]) for key in ("images", "patients")]
            cells = ["" if number is None else f"{number:.6f}" for number in numbers]
            lines.append([reference, name, site, *cells, *counts, found["seeds"]])
    return csv_table(["first", "second", "site", "mean", "low", "high", "p", "images", "patients", "seeds"], lines)


def below_local_lines(experiment: Experiment, outcomes: Outcomes, sites: list[str]) -> list[str]:
    """A line for each federated row that is worse than Local at a site, in the mean over the same number of seeds."""
    lines = {line.name: line for line in table_lines(experiment, outcomes, sites)}
    alone = [row for row in experiment.rows if _method(row) == LOCAL and row.show == "personal_own"]
    found = []
    for row in experiment.rows:
        if _method(row) in (LOCAL, CENTRALIZED) or row.name not in lines:
            continue
        for local in alone if not alone[1:] else [other for other in alone if _alike(row, other)]:
            mine, theirs = lines[row.name], lines[local.name]
            if mine.seeds() == theirs.seeds() and (below := sites_below(mine.dice(), theirs.dice())):
                found.append(below_local_text(row.name, local.name, below))
    return found


def _method(row: Row) -> str:
    return row.options.get("method", "fedsm")


def _alike(row: Row, other: Row) -> bool:
    """Whether two rows of a grid with axes are at the same point."""
    shared = (row.options.keys() & other.options.keys()) - {"method"}
    return all(row.options[key] == other.options[key] for key in shared)
