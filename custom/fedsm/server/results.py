"""From the sites' answers to results.json: Dice tables, gamma, selection frequencies."""

from __future__ import annotations

from typing import Any

from fedsm.core.limits import is_fraction
from fedsm.core.settings import JobSettings
from fedsm.core.shares import trimmed_mean
from fedsm.data.readers import FILE_KINDS
from fedsm.selectors.inference import GLOBAL, THRESHOLD, personal
from fedsm.tracks import selection_rule


def evaluation_problem(
    evaluation: Any, settings: JobSettings, sites: list[str], models: list[str], images: dict[str, int]
) -> str | None:
    """Why a site's evaluation cannot be used, or None. It comes from outside and is checked like weights are.

    Args:
        evaluation: what the site sent.
        settings: the job's settings.
        sites: all sites.
        models: the candidates that were sent, `selector` among them where there is one.
        images: the site's image counts, as registered.
    """
    networks = [m for m in models if m != "selector"]
    selects = "selector" in models and not set(map(personal, sites)) - set(models)
    try:
        if set(evaluation) != {"validation", "test", "files"}:
            return "evaluation is incomplete"
        if evaluation["files"] not in FILE_KINDS:
            return "evaluation does not say whether its images are pictures or volumes"
        for part in ("validation", "test"):
            result = evaluation[part]
            if result["images"] != images[part] or set(result["dice"]) != set(networks):
                return f"{part} evaluation is incomplete"
            if not selects and result["gammas"]:
                return f"{part} evaluation tells of a selector that there is not"
            rows = [result["dice"][m] for m in networks] + [row["dice"] for row in result["gammas"]]
            if settings.blend and _gammas(settings) != [None]:
                rows += [row["blend"] for row in result["gammas"]]
            if not all(set(row) == set(settings.task.labels) and all(map(is_fraction, row.values())) for row in rows):
                return f"{part} Dice is not in [0, 1]"
            if not selects:
                continue
            if [row["gamma"] for row in result["gammas"]] != _gammas(settings):
                return f"{part} evaluation has other gammas"
            choices = sites if selection_rule(settings) == THRESHOLD else [*sites, GLOBAL]
            counts = [(result["argmax"], choices)] + [(row["selected"], networks) for row in result["gammas"]]
            if not all(is_census(count, names, images[part]) for count, names in counts):
                return f"{part} counts do not add up to the site's images"
    except (KeyError, TypeError, AttributeError, IndexError):
        return "evaluation is malformed"
    return None


def _gammas(settings: JobSettings) -> list[float | None]:
    """The gammas that sites try; `[None]` for a selector without a threshold."""
    return list(settings.gammas) if selection_rule(settings) == THRESHOLD else [None]


def is_census(counts: dict, names: list[str], total: int) -> bool:
    """Whether there is a whole number for each name, and they add up to a total."""
    whole = all(isinstance(n, int) and n >= 0 for n in counts.values())
    return whole and set(counts) == set(names) and sum(counts.values()) == total


def choose_gamma(evaluations: dict[str, dict], gammas: list[float | None], how: str = "dice") -> float | None:
    """The gamma with the best validation Dice over the sites; `how`: of the hard choice, or `blend`.

    At each gamma, each site's Dice against its own mean over all gammas, then the trimmed mean over sites: one of four
    or more sites cannot decide, whatever it reports and however many images it claims. Among equal gammas the largest
    is chosen: it costs nothing on these images and sends more images from other sources to the global model.
    """
    parts = [e["validation"] for e in evaluations.values() if e["validation"]["gammas"]]
    if not parts or gammas == [None]:
        return None
    curves = [[_mean(row[how]) for row in p["gammas"]] for p in parts]
    gains = [[dice - sum(curve) / len(curve) for dice in curve] for curve in curves]
    return max((round(trimmed_mean([g[i] for g in gains]), 12), gamma) for i, gamma in enumerate(gammas))[1]


def _pooled(parts: list[dict], i: int, how: str) -> float:
    """Mean Dice at the i-th gamma over all images of all sites."""
    return sum(_mean(p["gammas"][i][how]) * p["images"] for p in parts) / sum(p["images"] for p in parts)


def summarize(evaluations: dict[str, dict], settings: JobSettings, sites: list[str]) -> dict:
    """Gamma and the test tables.

    Args:
        evaluations: site -> what `evaluate_candidates` gave for its validation and test part.
        settings: the job's settings.
        sites: all sites; one that did not answer has None in the tables.

    Returns:
        `gamma`, `blend_gamma`, `gamma_sweep` (pooled validation and test Dice per gamma), `super_model_validation`
        (pooled validation Dice of the super model; None without a selector), `files` (the kind of the sites' images,
        see `file_kind`; `mixed` where it differs) and `test` as in docs/reference/results.md.
    """
    gammas = _gammas(settings)
    gamma = choose_gamma(evaluations, gammas)
    blends = settings.blend and gamma is not None
    blend_gamma = choose_gamma(evaluations, gammas, "blend") if blends else None
    tests = {site: e["test"] for site, e in evaluations.items()}
    labels = list(settings.task.labels)
    rows = {}  # row of the tables -> site -> label -> Dice
    if any(GLOBAL in t["dice"] for t in tests.values()):
        rows["global"] = {site: t["dice"][GLOBAL] for site, t in tests.items()}
    own = {site: t["dice"][personal(site)] for site, t in tests.items() if personal(site) in t["dice"]}
    if own:
        rows["personal_own"] = own
    selected = any(t["gammas"] for t in tests.values())
    if selected:
        row = gammas.index(gamma)
        rows["super_model"] = {site: t["gammas"][row]["dice"] for site, t in tests.items()}
        if blends:
            soft = gammas.index(blend_gamma)
            rows["blend"] = {site: t["gammas"][soft]["blend"] for site, t in tests.items()}
    images = {site: t["images"] for site, t in tests.items()}
    test: dict = {name: _table(dice, images, sites, labels) for name, dice in rows.items()}
    if selected:
        hits = {site: t["argmax"][site] / t["images"] for site, t in tests.items()}
        test["selector_accuracy"] = {
            "per_site": {s: hits.get(s) for s in sites},
            "mean": sum(hits.values()) / len(hits),
        }
        test["first_choice"] = {site: t["argmax"] for site, t in tests.items()}
        test["selection_frequency"] = {
            site: {model: n / t["images"] for model, n in t["gammas"][row]["selected"].items()}
            for site, t in tests.items()
        }
    test["candidates"] = {site: {m: _mean(d) for m, d in t["dice"].items()} for site, t in tests.items()}
    if len(labels) > 1:
        test["labels"] = {label: _of_label(label, rows, tests, images, sites) for label in labels}
    validations = [e["validation"] for e in evaluations.values()]
    files = {e.get("files") for e in evaluations.values()}
    return {
        "files": files.pop() if len(files) == 1 else "mixed",
        "gamma": gamma,
        "blend_gamma": blend_gamma,
        "super_model_validation": _pooled(validations, gammas.index(gamma), "dice") if selected else None,
        "gamma_sweep": _sweep(evaluations, gammas, blends) if gamma is not None else [],
        "test": test,
    }


def _mean(by_label: dict[str, float]) -> float:
    return sum(by_label.values()) / len(by_label)


def _averages(dice: dict[str, float], images: dict[str, int], sites: list[str]) -> dict:
    """`per_site`, `client_avg` and `global`; the averages are over the sites that answered."""
    pooled = sum(value * images[site] for site, value in dice.items()) / sum(images[site] for site in dice)
    return {
        "per_site": {site: dice.get(site) for site in sites},
        "client_avg": sum(dice.values()) / len(dice),
        "global": pooled,
    }


def _table(dice: dict[str, dict[str, float]], images: dict[str, int], sites: list[str], labels: list[str]) -> dict:
    """One row of the paper's tables: `per_site`, `client_avg`, `global`, `per_label`."""
    averages = _averages({site: _mean(by_label) for site, by_label in dice.items()}, images, sites)
    per_label = {label: sum(by_label[label] for by_label in dice.values()) / len(dice) for label in labels}
    return averages | {"per_label": per_label}


def _of_label(label: str, rows: dict, tests: dict[str, dict], images: dict[str, int], sites: list[str]) -> dict:
    """The same tables of one label, and `candidates`."""
    candidates = {site: {m: d[label] for m, d in t["dice"].items()} for site, t in tests.items()}
    of_label = {name: {site: by_label[label] for site, by_label in dice.items()} for name, dice in rows.items()}
    tables = {name: _averages(dice, images, sites) for name, dice in of_label.items()}
    return tables | {"candidates": candidates}


def _sweep(evaluations: dict[str, dict], gammas: list[float | None], blends: bool) -> list[dict]:
    """Pooled Dice of Algorithm 2 at every gamma, and of soft selection under `blend`."""
    parts = {part: [e[part] for e in evaluations.values()] for part in ("validation", "test")}
    rows = []
    for i, gamma in enumerate(gammas):
        row = {"gamma": gamma} | {part: _pooled(found, i, "dice") for part, found in parts.items()}
        soft = {part: _pooled(found, i, "blend") for part, found in parts.items()} if blends else {}
        rows.append(row | ({"blend": soft} if blends else {}))
    return rows
