"""The report's tables: settings, Dice with the best in bold, intervals, costs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from fedsm.core.natural_order import natural_key
from fedsm.core.spread import spread_cells
from fedsm.core.tables import html_table
from fedsm.evaluation.figures import bytes_per_round
from fedsm.evaluation.image_scores import SUPER
from fedsm.evaluation.markdown import ROWS, images_row, score_cells, table_head, table_title
from fedsm.evaluation.metrics import METRICS
from fedsm.evaluation.runs import Run
from fedsm.evaluation.site_report import MEAN, OWN
from fedsm.evaluation.tables import TEST_IMAGES, count_row, dice_head, row_titles

_DASH = "–"


def number(value: float | None, digits: int = 4) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"


def settings_table(runs: list[Run]) -> Markup:
    """The settings of each run."""
    head = [
        "run",
        "method",
        "tracks",
        "lam",
        "gamma",
        "rounds",
        "seed",
        "size",
        "batch",
        "lr",
        "images (train / validation / test)",
    ]
    rows = []
    for run in runs:
        r, job = run.results, run.results["settings"]
        tracks = ", ".join(spec["kind"] for spec in job["tracks"].values())
        counts = [sum(n[part] for n in r["images"].values()) for part in ("train", "validation", "test")]
        lam, gamma = (_DASH if v is None else f"{v:g}" for v in (r["lam"], r["gamma"]))
        rows.append([run.name, r["method"], tracks, lam, gamma, str(r["rounds"]), str(r["seed"]), f"{job['size']} px",
                     str(job["batch_size"]), f"{job['lr']:g}", " / ".join(map(str, counts))])  # fmt: skip
    return html_table(head, rows, "the runs")


def dice_rows(runs: list[Run], sites: list[str]) -> tuple[list[list[str]], set[tuple[int, int]]]:
    """Rows of the Dice table and the (row, column) of the best in each column; centralized runs do not compete."""
    rows, values = [], []
    for run in runs:
        for title, key in row_titles(run.results):
            if found := run.results["test"].get(key):
                dice = [*(found["per_site"].get(s) for s in sites), found["client_avg"], found["global"]]
                label = f"{run.name}: {title}" if len(runs) > 1 else title
                rows.append([label, *map(number, dice), *spread_cells(found["per_site"])])
                values.append([None] * len(dice) if run.is_centralized else dice)
    bold = set()
    for j in range(len(sites) + 2):
        column = [value for row in values if (value := row[j]) is not None]
        bold |= {(i, j + 1) for i, row in enumerate(values) if column and row[j] == max(column)}
    return rows, bold


def dice_table(runs: list[Run], sites: list[str]) -> Markup:
    """Test Dice, the best of each column in bold."""
    rows, bold = dice_rows(runs, sites)
    counts = count_rows(runs, sites)
    note = "; centralized training is not compared: it pools the images of all sites" if any(
        r.is_centralized for r in runs
    ) else ""  # fmt: skip
    caption = f"mean Dice of test images, best in bold{note}"
    shifted = {(row + len(counts), column) for row, column in bold}
    return html_table(dice_head("test Dice", sites), [*counts, *rows], caption, shifted)


def count_rows(runs: list[Run], sites: list[str]) -> list[list[str]]:
    """The number of test images: one row where it is the same for all runs, else one row per run."""
    counts = {run.name: {site: n["test"] for site, n in run.results["images"].items()} for run in runs}
    if all(images == counts[runs[0].name] for images in counts.values()):
        return [count_row(counts[runs[0].name], sites)]
    return [count_row(images, sites, f"{name}: {TEST_IMAGES}") for name, images in counts.items()]


def interval_table(name: str, evaluation: dict, metrics: Sequence[str] = METRICS) -> Markup:
    """Every metric with its interval."""
    rows = [images_row(evaluation)]
    for metric in metrics:
        labels = evaluation["labels"] if len(evaluation["labels"]) > 1 else []
        for label in [MEAN, *labels]:
            for key in (SUPER, OWN, "global"):
                if key in evaluation["models"]:
                    of = f", {label}" if label != MEAN else ""
                    title = f"{table_title(evaluation, metric)}{of}: {ROWS[key]}"
                    rows.append([title, *score_cells(evaluation, key, metric, label)])
    boot = evaluation["bootstrap"]
    caption = f"{name}: {boot['level']:.0%} intervals, bootstrap by patient, {boot['draws']} draws"
    return html_table(table_head(evaluation, ""), rows, caption)


def cost_table(runs: list[Run]) -> Markup:
    """Time and bytes."""
    head = ["run", "rounds", "total", "median round", "down per round", "up per round", "all rounds", "answers missing"]
    rows = []
    for run in runs:
        seconds, history = run.results["seconds"], run.history()
        down, up = (bytes_per_round(run, key) for key in ("down_bytes", "up_bytes"))
        missing = sum(len(row["missing"]) for row in history)
        rows.append([
            run.name, str(len(history)), f"{seconds['total'] / 60:.1f} min", f"{median(seconds['round']):.1f} s",
            _mega(median(down)), _mega(median(up)), _mega(sum(down) + sum(up)), str(missing),
        ])  # fmt: skip
    return html_table(head, rows, "cost; bytes of all sites together")


def failure_table(run: Run) -> Markup | None:
    """The sites that did not answer, when and why; None if all did."""
    rows = [[str(row["round"]), site, why] for row in run.history() for site, why in row["missing"].items()]
    rows += [["evaluation", site, why] for site, why in run.results.get("missing_in_evaluation", {}).items()]
    return html_table(["round", "site", "why"], rows, f"{run.name}: answers that did not arrive") if rows else None


def conduct_table(run: Run) -> Markup | None:
    """Answers that were refused, or accepted with a warning, by site and reason; None if there were none."""
    found: dict[tuple[str, str, str], list[dict]] = {}
    for kind in ("refused", "warned"):
        for entry in run.results.get(kind, []):
            found.setdefault((entry["site"], kind, _without_numbers(entry["reason"])), []).append(entry)
    rows = [
        [site, kind, str(len(entries)), f"{entries[0]['round']} to {entries[-1]['round']}", entries[0]["reason"]]
        for (site, kind, _), entries in found.items()
    ]
    rows += [[site, "not listed", str(n), _DASH, _DASH] for site, n in run.results.get("uncounted", {}).items()]
    head = ["site", "what", "times", "rounds", "why (the first of them)"]
    return html_table(head, rows, f"{run.name}: answers refused, or accepted with a warning") if rows else None


def updates_table(run: Run) -> Markup | None:
    """Each site's updates over the rounds: median norm and cosine of each track; None where nothing is known."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in run.history():
        for track, by_site in row.get("conduct", {}).items():
            for site, entry in by_site.items():
                found.setdefault((track, site), []).append(entry)
    rows = []
    for (track, site), entries in sorted(found.items(), key=lambda item: (item[0][0], natural_key(item[0][1]))):
        cosines = [entry["cosine"] for entry in entries if entry["cosine"] is not None]
        middle, low = (number(of(cosines), 2) if cosines else _DASH for of in (median, min))
        rows.append([track, site, str(len(entries)), f"{median(e['norm'] for e in entries):.3g}", middle, low])
    head = ["track", "site", "updates", "median norm", "median cosine to the others", "lowest cosine"]
    return html_table(head, rows, f"{run.name}: the sites' updates") if rows else None


def quarantine_table(run: Run) -> Markup | None:
    """The sites that went into quarantine, when and why; None if there were none."""
    rows = [[q["site"], f"{q['round'] + 1} to {q['until']}", q["reason"]] for q in run.results.get("quarantined") or []]
    return html_table(["site", "rounds without it", "why"], rows, f"{run.name}: sites in quarantine") if rows else None


def _without_numbers(reason: str) -> str:
    """A reason without its numbers, to group reasons: norms and counts differ from round to round."""
    return re.sub(r"\d[\d.e+-]*", "#", reason)


def _mega(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
