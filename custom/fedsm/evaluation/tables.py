"""Tables for the terminal, from results.json."""

from __future__ import annotations

_ROWS = (("FedAvg (global)", "global"), ("personal, own site", "personal_own"), ("FedSM", "super_model"))


def dice_table(results: dict) -> str:
    """The test Dice of the run: a row a model, a column a site, then client average and global.

    Args:
        results: the content of results.json.
    """
    sites = results["sites"]
    test = results["test"]
    header = ["test Dice", *sites, "client avg", "global"]
    rows = [header]
    for title, key in _ROWS:
        if key in test:
            t = test[key]
            rows.append(
                [title, *(_number(t["per_site"][s]) for s in sites), _number(t["client_avg"]), _number(t["global"])]
            )
    if "selector_accuracy" in test:
        accuracy = test["selector_accuracy"]
        rows.append(
            ["selector accuracy", *(_number(accuracy["per_site"][s]) for s in sites), _number(accuracy["mean"]), ""]
        )
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
