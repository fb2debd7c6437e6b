"""Tables for the terminal, from results.json."""

from __future__ import annotations

from statistics import fmean

from fedsm.core.spread import SPREAD, WORST, spread_cells
from fedsm.core.tables import plain_table
from fedsm.selectors.policy import in_words

CLIENT_AVG, ALL_IMAGES = "client avg", "all images"  # the two means: over the sites' means, and over all images
TEST_IMAGES = "test images"  # the row of counts

_NAMES = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "centralized": "Centralized", "fedsm": "FedSM",
    "fedsm-extra": "FedSM-extra", "fedsm-ensemble": "ensemble",
}  # fmt: skip


def dice_table(results: dict) -> str:
    """The test Dice of the run: one row per model, one column per site, then the mean over sites and over all images,
    the worst site and the spread over sites.

    The number of test images is the first row, the selector's accuracy the last one, with the same two means.

    Args:
        results: the content of results.json.
    """
    sites = results["sites"]
    test = results["test"]
    rows = [count_row({site: counts["test"] for site, counts in results["images"].items()}, sites)]
    for title, key in row_titles(results):
        if key in test:
            t = test[key]
            dice = [*(t["per_site"][s] for s in sites), t["client_avg"], t["global"]]
            rows.append([title, *map(_number, dice), *spread_cells(t["per_site"])])
    if means := selector_means(results):
        accuracy = test["selector_accuracy"]["per_site"]
        rows.append(["selector accuracy", *map(_number, [*(accuracy[s] for s in sites), *means]), "", ""])
    chosen = policy_in_words(results)
    title = (
        f"{results['method']} on {results['task']}, {results['rounds']} rounds, selector {results['selector']}"
        f"{f'; {chosen} (chosen on the validation images)' if chosen else ''}"
    )
    return f"{title}\n\n{plain_table(dice_head('test Dice', sites), rows)}"


def dice_head(corner: str, sites: list[str]) -> list[str]:
    """The columns of every table of Dice."""
    return [corner, *sites, CLIENT_AVG, ALL_IMAGES, WORST, SPREAD]


def count_row(images: dict[str, int], sites: list[str], title: str = TEST_IMAGES) -> list[str]:
    """The row with each site's number of images and their sum."""
    known = [images.get(site) for site in sites]
    return [title, *("-" if n is None else str(n) for n in known), "", str(sum(n or 0 for n in known)), "", ""]


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
        images: how many images each site has.
    """
    known = {site: value for site, value in per_site.items() if value is not None}
    if not known:
        return None, None
    right = sum(value * images[site] for site, value in known.items())
    return fmean(known.values()), right / sum(images[site] for site in known)


def row_titles(results: dict) -> list[tuple[str, str]]:
    """A row's title and its key in `test`; an unknown method keeps its own name as title."""
    method = results["method"]
    kind = results.get("settings", {}).get("tracks", {}).get("global", {}).get("kind", "fedavg")
    of_global = {"centralized": method}.get(method, kind)
    rows = [(f"{_NAMES.get(of_global, of_global)} (global)", "global"), ("personal, own site", "personal_own")]
    super_model = _NAMES.get(method, method)
    rows += [(f"{super_model}, Algorithm 2", "algorithm2"), (super_model, "super_model")]
    return [*rows, ("two models blended", "blend")]


def policy_in_words(found: dict) -> str:
    """How a super model uses its selector, from results.json or a manifest; empty: nothing was chosen."""
    parts = [f"gamma {found['gamma']:g}"] if found.get("gamma") is not None else []
    parts += [f"delta {in_words(found['delta'])}"] if found.get("delta") is not None else []
    parts += [f"share of the global model {in_words(found['share'])}"] if found.get("share") else []
    parts += ["mirror images"] if found.get("flip") else []
    return "; ".join(parts + (["one model per volume"] if found.get("majority") else []))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
