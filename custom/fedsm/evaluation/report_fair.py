"""The report's comparisons: models and runs on the same images, and sites that do better alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from markupsafe import Markup

from fedsm.core.tables import html_table
from fedsm.evaluation.below_local import LOCAL, below_local_text, sites_below
from fedsm.evaluation.image_scores import SUPER
from fedsm.evaluation.markdown import ROWS
from fedsm.evaluation.page import absent, paragraph, warning
from fedsm.evaluation.paired import compare
from fedsm.evaluation.paired_table import NOTE, paired_cells, paired_head
from fedsm.evaluation.row_scores import differences
from fedsm.evaluation.runs import Run
from fedsm.evaluation.site_report import OWN
from fedsm.evaluation.study import Study
from fedsm.evaluation.tables import row_titles

_BEST = (SUPER, "global", OWN)  # the row that stands for a run: the first of these that it has


def comparisons(runs: list[Run], studies: Mapping[str, Study], sites: list[str]) -> list[Markup]:
    """The table of paired comparisons: of the models of each run, and of every two runs.

    Args:
        runs: the runs.
        studies: run's name -> its study.
        sites: the columns.
    """
    rows, unfit = [], []
    for run in runs:
        for found in (studies[run.name].evaluation or {}).get("paired", []):
            title = f"{ROWS[found['first']]} - {ROWS[found['second']]}"
            rows.append(paired_cells(f"{run.name}: {title}" if runs[1:] else title, found, sites))
    known = [run for run in runs if studies[run.name].rows]
    for one, two in combinations(known, 2):
        first, second = studies[one.name].rows, studies[two.name].rows
        assert first and second
        pair = differences(first, _best(one), second, _best(two))
        title = f"{_title(one)} - {_title(two)}"
        if pair is None:
            unfit.append(title)
        else:
            rows.append(paired_cells(title, compare(pair), sites))
    parts = [html_table(paired_head(sites), rows, "compared on the same test images"), paragraph(NOTE)] if rows else []
    if unfit:
        parts.append(absent(f"{'; '.join(unfit)}: these runs were tested on different images (another seed or sites)"))
    if runs[1:] and (without := [run.name for run in runs if run not in known]):
        parts.append(absent(f"{', '.join(without)} compared with other runs: no scores of single images are known"))
    return parts


def below_local(runs: list[Run]) -> list[Markup]:
    """A warning for each federated row that is worse at a site than a Local run of the same seed."""
    local = {run.results["seed"]: run for run in runs if run.results["method"] == LOCAL}
    parts = []
    for run in runs:
        alone = local.get(run.results["seed"])
        if alone is None or run.is_centralized or run.results["method"] == LOCAL:
            continue
        for title, key in row_titles(run.results):
            row = run.results["test"].get(key)
            if row and (below := sites_below(row["per_site"], alone.results["test"][OWN]["per_site"])):
                parts.append(warning(below_local_text(f"{run.name}: {title}", alone.name, below)))
    return parts


def _best(run: Run) -> str:
    return next(row for row in _BEST if row in run.results["test"])


def _title(run: Run) -> str:
    return f"{run.name} ({ROWS[_best(run)]})"
