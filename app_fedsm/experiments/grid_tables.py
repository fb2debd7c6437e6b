"""Lines of an experiment's tables: one per row (or model, or gamma), with the values of every seed."""

from __future__ import annotations

import statistics
from typing import Any

from app_fedsm.experiments.grid import Experiment
from app_fedsm.experiments.grid_format import ACCURACY, Line
from app_fedsm.experiments.grid_rows import Row
from fedsm.evaluation.tables import ALL_IMAGES, CLIENT_AVG, accuracy_means
from fedsm.selectors.inference import GLOBAL, personal

Outcomes = dict[tuple, list[dict]]  # run's key -> its results; with leave_one_out those of all sites left out
Values = dict[str, float | None]


def validation_score(show: str, results: dict) -> float:
    """The Dice on all validation images of what a row shows; a learning rate is chosen by it."""
    best = results["validation"]["best"]
    if show == "super_model" and results["validation"]["super_model"] is not None:
        return results["validation"]["super_model"]
    if show == "algorithm2":
        return next(row["validation"] for row in results["gamma_sweep"] if row["gamma"] == results["hard_gamma"])
    if show == "blend":
        return max(row["blend"]["validation"] for row in results["gamma_sweep"])
    images = {s: n["validation"] for s, n in results["images"].items() if personal(s) in best}
    if show == "global" or not images:
        return best[GLOBAL]["score"]
    return sum(best[personal(s)]["score"] * n for s, n in images.items()) / sum(images.values())


def choose(row: Row, experiment: Experiment, outcomes: Outcomes) -> tuple[Any, dict[Any, float]]:
    """The choice with the best mean validation score of the first seed; of equal ones the first.

    Returns:
        the choice (None: no run is finished, or there is nothing to choose), and the score of each that is finished.
    """
    scores = {}
    for choice in row.choices if experiment.choose else ():
        found = outcomes.get((row.source, choice, experiment.seeds[0]))
        if found:
            scores[choice] = statistics.fmean(validation_score(row.show, r) for r in found)
    return (max(scores, key=lambda choice: scores[choice]) if scores else None), scores


def labels_of(outcomes: Outcomes) -> list[str]:
    """The labels that have tables of their own: those of tasks with more than one."""
    found = [results["test"].get("labels", {}) for group in outcomes.values() for results in group]
    return list(dict.fromkeys(label for by_label in found for label in by_label))


def dice_lines(show: str, results: dict, sites: list[str], label: str | None = None) -> dict[str, Values]:
    """What one run says of a label, or of the mean over labels: the line's suffix -> column -> value."""
    test = results["test"]
    scored = test if label is None else test.get("labels", {}).get(label, {})
    images = {site: counts["test"] for site, counts in results["images"].items()}
    if show == "candidates":
        by_site = scored.get("candidates", {})
        models = list(next(iter(test["candidates"].values())))
        dice = {m: {site: scores.get(m) for site, scores in by_site.items()} for m in models}
        return {m.removeprefix("personal."): _dice_columns(dice[m], images, sites) for m in models}
    values = _dice_columns(scored.get(show, {"per_site": {}})["per_site"], images, sites)
    if label is None and len(test[show]["per_label"]) > 1:
        values |= dict.fromkeys(test[show]["per_label"]) if None in values.values() else test[show]["per_label"]
    # FedSM-extra and the ensemble (no gamma) do not learn to name an image's own site.
    if label is None and "selector_accuracy" in test and show in ("super_model", "algorithm2", "blend"):
        accuracy = test["selector_accuracy"]["per_site"] if results["gamma"] is not None else {}
        values |= zip(ACCURACY, accuracy_means(accuracy, images), strict=True)
    return {"": values}


def _dice_columns(dice: dict[str, float | None], images: dict[str, int], sites: list[str]) -> Values:
    """One column per site and the two averages, which are not known where a site's value is missing."""
    values: Values = {site: dice.get(site) for site in sites}
    known = {site: value for site, value in values.items() if value is not None}
    if len(known) < len(values):
        return values | {CLIENT_AVG: None, ALL_IMAGES: None}
    pooled = sum(known[s] * images[s] for s in sites) / sum(images[s] for s in sites)
    return values | {CLIENT_AVG: statistics.fmean(known.values()), ALL_IMAGES: pooled}


def _mean(by_label: dict[str, float]) -> float:
    return statistics.fmean(by_label.values())


def gammas_of(unseen: dict) -> dict[str, dict]:
    """The rows of a test on an unseen site that are reported.

    The super model as it is; Algorithm 2 at gamma 0 (where it was tried), at the gamma that was chosen on the other
    sites' validation images, and at the gamma that is best for these images, which is not known beforehand (the
    paper's).
    """
    rows, policy = unseen["evaluation"]["gammas"], unseen["evaluation"]["policy"]
    if unseen["hard_gamma"] is None:  # a selector without a threshold
        return {"": policy | {"gamma": None}}
    chosen = next(row for row in rows if row["gamma"] == unseen["hard_gamma"])
    best = max(rows, key=lambda row: (round(_mean(row["dice"]), 12), row["gamma"]))
    never = next((row for row in rows if row["gamma"] == 0), None)
    own = unseen["policy"]
    plain = own["delta"] is None and not own["share"] and not own["flip"] and not own.get("majority")
    shown = {
        "super model": None if plain else policy | {"gamma": own["gamma"]},  # else it is Algorithm 2
        "gamma 0": never,
        "gamma of validation": chosen,
        "best gamma (hindsight)": best,
    }
    return {name: row for name, row in shown.items() if row}


def unseen_lines(show: str, found: list[dict], sites: list[str]) -> dict[str, Values]:
    """Dice of the models on the sites that they have not seen: the line's suffix -> unseen site -> value."""
    lines: dict[str, Values] = {}
    for unseen in (r["unseen"] for r in found):
        if show == "global":
            scores = {"": unseen["evaluation"]["dice"][GLOBAL]}
        else:
            scores = {suffix: row["dice"] for suffix, row in gammas_of(unseen).items()}
        for suffix, dice in scores.items():
            lines.setdefault(suffix, dict.fromkeys(sites))[unseen["site"]] = _mean(dice)
    for values in lines.values():
        known = [value for value in values.values() if value is not None]
        values["avg"] = None if len(known) < len(values) else statistics.fmean(known)
    return lines


def selection_lines(found: list[dict], sites: list[str]) -> dict[str, Values]:
    """How often each model was selected for an unseen site: the line's suffix -> model -> fraction of images."""
    lines: dict[str, Values] = {}
    for suffix in gammas_of(found[0]["unseen"]):
        for unseen in (r["unseen"] for r in found):
            row, total = gammas_of(unseen)[suffix], unseen["evaluation"]["images"]
            values = {GLOBAL: row["selected"][GLOBAL] / total}
            values |= {s: row["selected"][personal(s)] / total if s != unseen["site"] else None for s in sites}
            values |= {"gamma": row["gamma"], "Dice": _mean(row["dice"])}
            lines[f"{suffix}: unseen {unseen['site']}".removeprefix(": ")] = values
    return lines


def table_lines(
    experiment: Experiment, outcomes: Outcomes, sites: list[str], selection: bool = False, label: str | None = None
) -> list[Line]:
    """All lines of the table, of a label's, or of that of selection frequencies; rows without results have no cells."""
    lines = []
    for row in experiment.rows:
        if selection and row.show == "global":
            continue
        choice, _ = choose(row, experiment, outcomes)
        mine: dict[str, Line] = {}
        for seed in experiment.seeds:
            if not (found := outcomes.get((row.source, choice, seed))):
                continue
            images = {} if selection else _test_images(found)
            for suffix, values in _lines(row.show, found, sites, experiment, selection, label).items():
                line = mine.setdefault(suffix, Line(": ".join(filter(None, (row.name, suffix)))))
                for column, value in values.items():
                    line.cells.setdefault(column, []).append(value)
                for site, count in images.items():
                    line.images.setdefault(site, []).append(count)
        lines += list(mine.values()) or [Line(row.name)]
    return lines


def _test_images(found: list[dict]) -> dict[str, int]:
    """Site -> how many of its images a run was tested on; of runs that left a site out, those of the unseen sites."""
    if "unseen" in found[0]:
        return {r["unseen"]["site"]: r["unseen"]["evaluation"]["images"] for r in found}
    return {site: counts["test"] for site, counts in found[0]["images"].items()}


def _lines(
    show: str, found: list[dict], sites: list[str], experiment: Experiment, selection: bool, label: str | None
) -> dict[str, Values]:
    if selection:
        return selection_lines(found, sites)
    if experiment.leave_one_out:
        return unseen_lines(show, found, sites)
    lines = dice_lines(show, found[0], sites, label)
    if experiment.costs and label is None:
        lines = {suffix: values | cost_columns(found[0], experiment.parallel) for suffix, values in lines.items()}
    return lines


def cost_columns(results: dict, parallel: int) -> Values:
    """What a site gets and sends for training in all, in MB (the mean over sites), and the median round's seconds.

    In all, not in a round: FedSM-extra's last rounds carry less, and sums that are sent once count too. Without the
    candidates, which go down once when all training is over, to be tested. Seconds of runs that shared the processors
    say so.
    """
    seconds = "s per round" if parallel == 1 else f"s per round ({parallel} runs at once)"
    if "wire" not in results:  # centralized
        return {"MB down": None, "MB up": None, seconds: None}
    wire = results["wire"]
    rounds = {way: [sum(counts) for counts in wire[f"{way}_bytes"].values()] for way in ("down", "up")}
    once = {"down": ["delivery_down_bytes"], "up": ["registration_up_bytes", "delivery_up_bytes"]}
    total = {way: sum(rounds[way]) + sum(sum(wire.get(key, {}).values()) for key in once[way]) for way in rounds}
    mean = {f"MB {way}": count / len(rounds[way]) / 1e6 for way, count in total.items()}
    return mean | {seconds: statistics.median(results["seconds"]["round"])}
