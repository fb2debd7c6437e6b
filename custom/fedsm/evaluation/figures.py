"""The report's figures, each drawn from plain values."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsm.evaluation.figure_style import DASHES, HEAT, INK, MARKERS, add_legend, new_figure
from fedsm.evaluation.runs import Run
from fedsm.tracks import score_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tracks_of(run: Run) -> list[str]:
    """The tracks that have a curve, in the job's order."""
    seen = Counter(track for row in run.history() for track in {**row.get("loss", {}), **row.get("validation", {})})
    return [track for track in run.results["settings"]["tracks"] if seen[track] > 1]


def curves(run: Run, track: str, colours: dict[str, str], centralized: list[Run]) -> Figure:
    """Validation score and training loss of a track: one line per site, the mean black, centralized dashed."""
    figure, (above, below) = new_figure(height=4.8, rows=2)
    rows = run.history()
    rounds = [row["round"] for row in rows]
    for axes, key in ((above, "validation"), (below, "loss")):
        for site in run.sites:
            points = [(row["round"], row[key][track][site]) for row in rows if site in row.get(key, {}).get(track, {})]
            axes.plot(*np.reshape(points, (-1, 2)).T, color=colours[site], label=site, linewidth=1.2)
    means = [row.get("score", {}).get(track, math.nan) for row in rows]
    above.plot(rounds, means, color=INK, linewidth=2.2, label="all sites")
    if track != "selector":
        for other, dash in zip(centralized, DASHES[1:] * len(centralized), strict=False):
            points = [(row["round"], row["score"]["global"]) for row in other.history()]
            above.plot(*zip(*points, strict=True), color=INK, linestyle=dash, linewidth=1.2, label="centralized")
    _whole_rounds(above, below)
    above.set_ylabel(f"validation {score_names(run.settings)[track]}")
    below.set(xlabel="round", ylabel="training loss")
    add_legend(figure, above)
    return figure


def conduct(run: Run, track: str, colours: dict[str, str]) -> Figure:
    """Norm of each site's update of a track, and its cosine to the others' mean: one line per site."""
    figure, (above, below) = new_figure(height=4.8, rows=2)
    rows = run.history()
    for axes, key in ((above, "cosine"), (below, "norm")):
        for site in run.sites:
            found = [row.get("conduct", {}).get(track, {}).get(site, {}).get(key) for row in rows]
            points = [(row["round"], value) for row, value in zip(rows, found, strict=True) if value is not None]
            axes.plot(*np.reshape(points, (-1, 2)).T, color=colours[site], label=site, linewidth=1.2)
    above.axhline(0, color=INK, linewidth=0.8)
    _whole_rounds(above, below)
    above.set(ylabel="cosine to the others", ylim=(-1.05, 1.05))
    below.set(xlabel="round", ylabel="norm of the update", yscale="log")
    add_legend(figure, above)
    return figure


def _whole_rounds(*axes: Any) -> None:
    """Ticks of rounds are whole numbers, also where there are few of them."""
    for one in axes:
        one.xaxis.get_major_locator().set_params(integer=True)


def gamma_sweep(rows: list[dict], chosen: float | None) -> Figure:
    """Dice of Algorithm 2 at every threshold, all images pooled; a line marks the one chosen on validation images."""
    figure, axes = new_figure()
    points = range(len(rows))
    for key, colour, dash in (("validation", INK, "--"), ("test", "#0072B2", "-")):
        if all(key in row for row in rows):
            axes.plot(points, [row[key] for row in rows], color=colour, linestyle=dash, marker="o", ms=4, label=key)
    axes.set_xticks(points, [f"{row['gamma']:g}" for row in rows])
    if chosen in [row["gamma"] for row in rows]:
        axes.axvline([row["gamma"] for row in rows].index(chosen), color="#D55E00", linewidth=1, label="chosen")
    axes.set(xlabel="gamma (0: never the global model, 1: always)", ylabel="Dice")
    add_legend(figure, axes)
    return figure


def heat_map(
    rows: dict[str, dict[str, float]], ylabel: str, xlabel: str, digits: int = 2, top: float | None = 1.0
) -> Figure:
    """A matrix with its numbers: row -> column -> value. `top` has the brightest colour; None: the row's sum."""
    names, columns = list(rows), list(next(iter(rows.values())))
    values = np.array([[rows[r].get(c, math.nan) for c in columns] for r in names], float)
    shades = values / (values.sum(1, keepdims=True).clip(1) if top is None else top)
    longest = max(map(len, columns))
    figure, axes = new_figure(max(3.2, 1.6 + 0.62 * len(columns)), 0.9 + 0.42 * len(names) + 0.055 * longest)
    axes.pcolormesh(shades, cmap=HEAT, vmin=0, vmax=1, edgecolors="face", linewidth=0.3)
    for i, j in np.ndindex(values.shape):
        if not math.isnan(values[i, j]):
            ink = "#000000" if shades[i, j] > 0.55 else "#ffffff"
            axes.text(j + 0.5, i + 0.5, f"{values[i, j]:.{digits}f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(names)) + 0.5, names)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.invert_yaxis()
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure


def reliability_diagram(found: dict) -> Figure:
    """Accuracy against confidence, one bar per bin; below it the number of images in each bin."""
    figure, (above, below) = new_figure(height=4.2, rows=2)
    bins = found["bins"]
    centres, width = [(b["low"] + b["high"]) / 2 for b in bins], 0.9 / len(bins)
    above.bar(centres, [b.get("accuracy", 0) for b in bins], width, color="#0072B2", label="accuracy")
    full = [b for b in bins if b["images"]]
    seen = [[b[k] for b in full] for k in ("confidence", "accuracy")]
    above.scatter(*seen, color="#E69F00", zorder=3, s=18, label="at the bin's mean confidence")
    above.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1, label="perfect")
    above.set(ylabel="accuracy", ylim=(0, 1.05), xlim=(0, 1))
    add_legend(figure, above)
    below.bar(centres, [b["images"] for b in bins], width, color="#56B4E9")
    below.set(xlabel="the selector's confidence, max yhat", ylabel="images", xlim=(0, 1))
    return figure


def scatter(maps: dict[str, np.ndarray], tested: dict[str, np.ndarray], colours: dict[str, str]) -> Figure:
    """The t-SNE map: one colour and marker per site; test images filled, the others hollow."""
    figure, axes = new_figure(height=4.0)
    for i, (site, points) in enumerate(maps.items()):
        marker, held = MARKERS[i % len(MARKERS)], tested[site]
        look = {"marker": marker, "s": 22, "edgecolors": colours[site], "linewidths": 1}
        axes.scatter(*points[~held].T, facecolors="none", **look)
        axes.scatter(*points[held].T, facecolors=colours[site], label=site, **look)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    add_legend(figure, axes)
    return figure


def surface(losses: dict[tuple[str, str], tuple[list[float], np.ndarray]], colour: str, runs: list[str]) -> Figure:
    """Mean loss over the directions, and the band from the lowest to the highest: one line per run and model.

    Args:
        losses: (run, model) -> steps, and (directions, steps) losses.
        colour: the site's colour.
        runs: the runs in their order, for the dashes.
    """
    figure, axes = new_figure(height=3.4)
    for (run, model), (steps, values) in losses.items():
        ink = INK if model == "global" else colour
        label = model if len(runs) == 1 else f"{run}: {model}"
        dash = DASHES[runs.index(run) % len(DASHES)]
        axes.plot(steps, values.mean(0), color=ink, linestyle=dash, label=label)
        axes.fill_between(steps, values.min(0), values.max(0), color=ink, alpha=0.1, linewidth=0)
    axes.set(xlabel="distance from the trained weights", ylabel="Dice loss")
    add_legend(figure, axes, columns=2)
    return figure


def costs(run: Run) -> Figure:
    """Seconds and megabytes of each round."""
    figure, (above, below) = new_figure(height=4.2, rows=2)
    rows = run.history()
    rounds, seconds = [row["round"] for row in rows], [row["seconds"] for row in rows]
    above.plot(rounds, seconds, color="#0072B2", linewidth=1.2)
    above.axhline(median(seconds), color=INK, linestyle="--", linewidth=1, label=f"median {median(seconds):.1f} s")
    above.set(ylabel="seconds", ylim=(0, None))
    for key, label, colour, dash in (
        ("down_bytes", "to all sites", "#0072B2", "-"),
        ("up_bytes", "back", "#D55E00", "--"),
    ):
        total = bytes_per_round(run, key)
        below.plot(range(1, len(total) + 1), [n / 1e6 for n in total], color=colour, linestyle=dash, label=label)
    below.set(xlabel="round", ylabel="MB", ylim=(0, None))
    _whole_rounds(above, below)
    add_legend(figure, above, below)
    return figure


def bytes_per_round(run: Run, key: str) -> list[int]:
    """Bytes of all sites together, each round."""
    return [sum(sent) for sent in zip(*run.results["wire"][key].values(), strict=True)]


def attendance(run: Run) -> Figure:
    """The sites that answered in each round."""
    rows = run.history()
    figure, axes = new_figure(height=1.2 + 0.3 * len(run.sites))
    for i, site in enumerate(run.sites):
        for key, colour, marker in (("answered", "#0072B2", "|"), ("missing", "#D55E00", "x")):
            rounds = [row["round"] for row in rows if site in row[key]]
            axes.scatter(rounds, [i] * len(rounds), color=colour, marker=marker, s=26, label=None if i else key)
    axes.set_yticks(range(len(run.sites)), run.sites)
    axes.set(xlabel="round", ylim=(len(run.sites) - 0.5, -0.5))
    _whole_rounds(axes)
    add_legend(figure, axes)
    return figure
