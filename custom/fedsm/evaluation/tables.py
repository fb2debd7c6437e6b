"""Tables for the terminal, from results.json."""

from __future__ import annotations

from statistics import fmean

from fedsm.core.tables import plain_table

CLIENT_AVG, ALL_IMAGES = "client avg", "all images"  # the two means: over the sites' means, and over all images

_NAMES = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "centralized": "Centralized", "fedsm": "FedSM",
    "fedsm-extra": "FedSM-extra", "fedsm-ensemble": "ensemble",
}  # fmt: skip


def dice_table(results: dict) -> str:
    """The test Dice of the run: one row per model, one column per site, then the mean over sites and over all images.

    The selector's accuracy is the last row, with the same two means.

    Args:
        results: the content of results.json.
    """
    sites = results["sites"]
    test = results["test"]
    rows = []
    for title, key in row_titles(results):
        if key in test:
            t = test[key]
            rows.append([title, *map(_number, [*(t["per_site"][s] for s in sites), t["client_avg"], t["global"]])])
    if means := selector_means(results):
        accuracy = test["selector_accuracy"]["per_site"]
        rows.append(["selector accuracy", *map(_number, [*(accuracy[s] for s in sites), *means])])
    gamma = "" if results["gamma"] is None else f"; gamma {results['gamma']:g} chosen on the validation images"
    title = (
        f"{results['method']} on {results['task']}, {results['rounds']} rounds, selector {results['selector']}{gamma}"
    )
    return f"{title}\n\n{plain_table(['test Dice', *sites, CLIENT_AVG, ALL_IMAGES], rows)}"


def selector_means(results: dict) -> tuple[float | None, float | None] | None:
    """`accuracy_means` of a run's selector.

    None for FedSM-extra and the ensemble, which have no gamma: they do not learn to name an image's own site.
    """
    accuracy = results["test"].get("selector_accuracy")
    if accuracy is None or results["gamma"] is None:
        return None
    images = {site: counts["test"] for site, counts in results["images"].items()}
    return accuracy_means(accuracy["per_site"], images)


def accuracy_means(per_site: dict[str, float | None], images: dict[str, int]) -> tuple[float | None, float | None]:
    """A selector's accuracy as the mean over sites, and as the share of all images; sites without a value are left out.

    Args:
        per_site: the accuracy at each site.
        images: how many images each has.
    """
    known = {site: value for site, value in per_site.items() if value is not None}
    if not known:
        return None, None
    right = sum(value * images[site] for site, value in known.items())
    return fmean(known.values()), right / sum(images[site] for site in known)


def row_titles(results: dict) -> list[tuple[str, str]]:
    """A row's title and its key in `test`; a method that is not known goes by its own name."""
    method = results["method"]
    kind = results.get("settings", {}).get("tracks", {}).get("global", {}).get("kind", "fedavg")
    of_global = {"centralized": method}.get(method, kind)
    rows = [(f"{_NAMES.get(of_global, of_global)} (global)", "global"), ("personal, own site", "personal_own")]
    return [*rows, (_NAMES.get(method, method), "super_model"), ("two models blended", "blend")]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
