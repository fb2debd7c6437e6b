"""From the sites' answers to results.json: Dice tables, gamma, selection frequencies."""

from __future__ import annotations

from typing import Any

from fedsm.core.settings import JobSettings
from fedsm.selectors.inference import GLOBAL, personal
from fedsm.selectors.policy import Policy
from fedsm.server.evaluation_check import gammas_of
from fedsm.server.policy_choice import choose_gamma, policy_score, policy_table


def summarize(
    validations: dict[str, dict], tests: dict[str, dict], policy: Policy, settings: JobSettings, sites: list[str]
) -> dict:
    """Thresholds and the test tables.

    Args:
        validations: site -> what `validate_candidates` gave.
        tests: site -> what `evaluate_candidates` gave, and `files`, the kind of its images.
        policy: what was chosen from the validations.
        settings: the job's settings.
        sites: all sites; one that did not answer has None in the tables.

    Returns:
        the policy's values, `hard_gamma` and `blend_gamma` (those of Algorithm 2 and of soft selection alone),
        `policies` (what others would gain), `gamma_sweep` (pooled validation and test Dice of Algorithm 2 per gamma),
        `super_model_validation` (pooled validation Dice of the super model; None without a selector), `files` (the kind
        of the sites' images, see `file_kind`; `mixed` where it differs) and `test` as in docs/reference/results.md.
    """
    gammas = gammas_of(settings)
    hard_gamma = choose_gamma(validations, gammas)
    blends = settings.blend and hard_gamma is not None
    blend_gamma = choose_gamma(validations, gammas, "blend") if blends else None
    labels = list(settings.task.labels)
    rows = {}  # row of the tables -> site -> label -> Dice
    if any(GLOBAL in t["dice"] for t in tests.values()):
        rows["global"] = {site: t["dice"][GLOBAL] for site, t in tests.items()}
    own = {site: t["dice"][personal(site)] for site, t in tests.items() if personal(site) in t["dice"]}
    if own:
        rows["personal_own"] = own
    selected = any(t["gammas"] for t in tests.values())
    if selected:
        hard = gammas.index(hard_gamma)
        if settings.selection == "best":
            rows["algorithm2"] = {site: t["gammas"][hard]["dice"] for site, t in tests.items()}
        rows["super_model"] = {site: t["policy"]["dice"] for site, t in tests.items()}
        if blends:
            soft = gammas.index(blend_gamma)
            rows["blend"] = {site: t["gammas"][soft]["blend"] for site, t in tests.items()}
    images = {site: t["images"] for site, t in tests.items()}
    test: dict = {name: _table(dice, images, sites, labels) for name, dice in rows.items()}
    if selected:
        test |= _selection(tests, sites)
    test["candidates"] = {site: {m: _mean(d) for m, d in t["dice"].items()} for site, t in tests.items()}
    if len(labels) > 1:
        test["labels"] = {label: _of_label(label, rows, tests, images, sites) for label in labels}
    files = {t.get("files") for t in tests.values()}
    return policy.to_dict() | {
        "files": files.pop() if len(files) == 1 else "mixed",
        "hard_gamma": hard_gamma,
        "blend_gamma": blend_gamma,
        "policies": policy_table(validations, settings),
        "super_model_validation": _pooled_score(validations, sites, policy, settings) if selected else None,
        "gamma_sweep": _sweep(validations, tests, gammas, blends) if hard_gamma is not None else [],
        "test": test,
    }


def _selection(tests: dict[str, dict], sites: list[str]) -> dict:
    """What the selector did with the test images."""
    hits = {site: t["argmax"][site] / t["images"] for site, t in tests.items()}
    return {
        "selector_accuracy": {"per_site": {s: hits.get(s) for s in sites}, "mean": sum(hits.values()) / len(hits)},
        "first_choice": {site: t["argmax"] for site, t in tests.items()},
        "selection_frequency": {
            site: {model: n / t["images"] for model, n in t["policy"]["selected"].items()} for site, t in tests.items()
        },
        "foreign": {
            site: None if t["policy"]["foreign"] is None else t["policy"]["foreign"] / t["images"]
            for site, t in tests.items()
        },
    }


def _pooled_score(validations: dict[str, dict], sites: list[str], policy: Policy, settings: JobSettings) -> float:
    """Mean validation Dice of the super model over all images of all sites."""
    total = sum(v["images"] for v in validations.values())
    scores = {site: policy_score(v, sites.index(site), policy, settings) for site, v in validations.items()}
    return sum(scores[site] * v["images"] for site, v in validations.items()) / total


def _pooled(parts: list[dict], i: int, how: str) -> float:
    """Mean Dice at the i-th gamma over all images of all sites."""
    return sum(_mean(p["gammas"][i][how]) * p["images"] for p in parts) / sum(p["images"] for p in parts)


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


def _sweep(
    validations: dict[str, dict], tests: dict[str, dict], gammas: list[float | None], blends: bool
) -> list[dict]:
    """Pooled Dice of hard selection at every gamma, and of soft selection under `blend`."""
    parts = {"validation": list(validations.values()), "test": list(tests.values())}
    rows = []
    for i, gamma in enumerate(gammas):
        row: dict[str, Any] = {"gamma": gamma} | {part: _pooled(found, i, "dice") for part, found in parts.items()}
        soft = {part: _pooled(found, i, "blend") for part, found in parts.items()} if blends else {}
        rows.append(row | ({"blend": soft} if blends else {}))
    return rows
