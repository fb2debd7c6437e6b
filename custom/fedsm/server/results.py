"""From the sites' answers to results.json: Dice tables, gamma, selection frequencies."""

from __future__ import annotations

from fedsm.settings import JobSettings
from fedsm.super_model.inference import GLOBAL, personal
from fedsm.tracks import selection_rule
from fedsm.tracks.base import DIRECT, THRESHOLD, is_fraction


def evaluation_problem(
    evaluation, settings: JobSettings, sites: list[str], models: list[str], images: dict[str, int]
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
    try:
        for part in ("validation", "test"):
            result = evaluation[part]
            if result["images"] != images[part] or set(result["dice"]) != set(networks):
                return f"{part} evaluation is incomplete"
            rows = [result["dice"][m] for m in networks] + [row["dice"] for row in result["gammas"]]
            if settings.blend and _gammas(settings) != [None]:
                rows += [row["blend"] for row in result["gammas"]]
            if not all(set(row) == set(settings.task.labels) and all(map(is_fraction, row.values())) for row in rows):
                return f"{part} Dice is not in [0, 1]"
            if "selector" not in models or set(map(personal, sites)) - set(models):
                continue
            if [row["gamma"] for row in result["gammas"]] != _gammas(settings):
                return f"{part} evaluation has other gammas"
            first = [*sites, GLOBAL] if selection_rule(settings) == DIRECT else sites
            counts = [(result["argmax"], first)] + [(row["selected"], networks) for row in result["gammas"]]
            if not all(is_census(count, names, images[part]) for count, names in counts):
                return f"{part} counts do not add up to the site's images"
    except (KeyError, TypeError, AttributeError, IndexError):
        return "evaluation is malformed"
    return None


def _gammas(settings: JobSettings) -> list[float | None]:
    """The gammas that sites try: None alone for a selector without a threshold."""
    return list(settings.gammas) if selection_rule(settings) == THRESHOLD else [None]


def is_census(counts: dict, names: list[str], total: int) -> bool:
    """Whether whole numbers of all names add up to a total."""
    whole = all(isinstance(n, int) and n >= 0 for n in counts.values())
    return whole and set(counts) == set(names) and sum(counts.values()) == total


def choose_gamma(evaluations: dict[str, dict], gammas: list[float | None]) -> float | None:
    """The gamma with the best Dice over all validation images of all sites.

    Of equal ones the largest: it costs nothing on these images and sends more of the foreign ones to the global model.
    """
    parts = [e["validation"] for e in evaluations.values() if e["validation"]["gammas"]]
    if not parts or gammas == [None]:
        return None
    images = sum(p["images"] for p in parts)

    def pooled(i: int) -> float:
        return sum(_mean(p["gammas"][i]["dice"]) * p["images"] for p in parts) / images

    return max((round(pooled(i), 12), gamma) for i, gamma in enumerate(gammas))[1]


def summarize(evaluations: dict[str, dict], settings: JobSettings, sites: list[str]) -> dict:
    """Gamma and the test tables.

    Args:
        evaluations: site -> what `evaluate_candidates` gave for its validation and test part.
        settings: the job's settings.
        sites: all sites; one that did not answer has None in the tables.

    Returns:
        `gamma`, `gamma_sweep` (pooled validation and test Dice a gamma) and `test` as in the README's schema.
    """
    gammas = _gammas(settings)
    gamma = choose_gamma(evaluations, gammas)
    tests = {site: e["test"] for site, e in evaluations.items()}
    labels = list(settings.task.labels)
    has_global = any(GLOBAL in t["dice"] for t in tests.values())
    test: dict = {}
    if has_global:
        test["global"] = _table(tests, sites, labels, lambda site, t: t["dice"][GLOBAL])
    own = {site: t for site, t in tests.items() if personal(site) in t["dice"]}
    if own:
        test["personal_own"] = _table(own, sites, labels, lambda site, t: t["dice"][personal(site)])
    selected = any(t["gammas"] for t in tests.values())
    if selected:
        row = gammas.index(gamma)
        test["super_model"] = _table(tests, sites, labels, lambda site, t: t["gammas"][row]["dice"])
        if settings.blend and gamma is not None:
            test["blend"] = _table(tests, sites, labels, lambda site, t: t["gammas"][row]["blend"])
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
    return {
        "gamma": gamma,
        "gamma_sweep": _sweep(evaluations, gammas) if gamma is not None else [],
        "test": test,
    }


def _mean(by_label: dict[str, float]) -> float:
    return sum(by_label.values()) / len(by_label)


def _table(tests: dict[str, dict], sites: list[str], labels: list[str], pick) -> dict:
    """One row of the paper's tables: `per_site`, `client_avg`, `global`, `per_label`."""
    rows = {site: pick(site, t) for site, t in tests.items()}
    images = {site: t["images"] for site, t in tests.items()}
    total = sum(images.values())
    return {
        "per_site": {s: _mean(rows[s]) if s in rows else None for s in sites},
        "client_avg": sum(_mean(r) for r in rows.values()) / len(rows),
        "global": sum(_mean(r) * images[s] for s, r in rows.items()) / total,
        "per_label": {label: sum(r[label] for r in rows.values()) / len(rows) for label in labels},
    }


def _sweep(evaluations: dict[str, dict], gammas: list[float]) -> list[dict]:
    """Pooled Dice of Algorithm 2 at every gamma."""
    sweep = []
    for i, gamma in enumerate(gammas):
        row = {"gamma": gamma}
        for part in ("validation", "test"):
            results = [e[part] for e in evaluations.values()]
            images = sum(r["images"] for r in results)
            row[part] = sum(_mean(r["gammas"][i]["dice"]) * r["images"] for r in results) / images
        sweep.append(row)
    return sweep
