"""Tables for the terminal, from results.json."""

from __future__ import annotations

_NAMES = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "centralized": "Centralized", "fedsm": "FedSM",
    "fedsm-extra": "FedSM-extra", "fedsm-ensemble": "ensemble",
}  # fmt: skip


def dice_table(results: dict) -> str:
    """The test Dice of the run: a row a model, a column a site, then client average, global and selector accuracy.

    The selector's accuracy at each site has a row of its own below.

    Args:
        results: the content of results.json.
    """
    sites = results["sites"]
    test = results["test"]
    # FedSM-extra and the ensemble, which have no gamma, do not learn to name an image's own site.
    accuracy = test.get("selector_accuracy") if results["gamma"] is not None else None
    header = ["test Dice", *sites, "client avg", "global", *(["selector acc."] if accuracy else [])]
    rows = [header]
    for title, key in row_titles(results):
        if key in test:
            t = test[key]
            dice = [*(t["per_site"][s] for s in sites), t["client_avg"], t["global"]]
            chosen = [_number(accuracy["mean"]) if key == "super_model" else ""] if accuracy else []
            rows.append([title, *map(_number, dice), *chosen])
    if accuracy:
        rows.append(["selector accuracy", *(_number(accuracy["per_site"][s]) for s in sites), "", "", ""])
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    gamma = "" if results["gamma"] is None else f"; gamma {results['gamma']:g} chosen on the validation images"
    title = (
        f"{results['method']} on {results['task']}, {results['rounds']} rounds, selector {results['selector']}{gamma}"
    )
    return "\n".join([title, "", *lines])


def row_titles(results: dict) -> list[tuple[str, str]]:
    """A row's title and its key in `test`; a method that is not known goes by its own name."""
    method = results["method"]
    kind = results.get("settings", {}).get("tracks", {}).get("global", {}).get("kind", "fedavg")
    of_global = {"centralized": method}.get(method, kind)
    rows = [(f"{_NAMES.get(of_global, of_global)} (global)", "global"), ("personal, own site", "personal_own")]
    return [*rows, (_NAMES.get(method, method), "super_model"), ("two models blended", "blend")]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
