"""Draws the picture of the README from a run: `python docs_tools/figure.py RUN OUT.png`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import torch

from fedsm.data.dataset import load_site
from fedsm.nets import build_unet
from fedsm.selectors.inference import GLOBAL, personal, select
from fedsm.super_model.artefact import load_super_model
from fedsm.tracks import build_inference_selector

matplotlib.use("Agg")
matplotlib.rcParams["text.parse_math"] = False  # names of sites are not formulas
from matplotlib import pyplot as plt  # noqa: E402 (the backend must be chosen first)

TRUTH, PREDICTION = "#ffffff", {"disc": "#37d67a", "cup": "#4aa3ff"}
CPU = torch.device("cpu")


def main() -> None:
    """Reads the run, draws curves, bars and one test image per site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    run = json.loads((args.run / "run.json").read_text())
    results = json.loads((args.run / "results.json").read_text())
    model = load_super_model(args.run / "super_model")
    sites = results["sites"]

    figure = plt.figure(figsize=(13, 7.2), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.35])
    curves, bars = top.subplots(1, 2)
    draw_curves(curves, results)
    draw_bars(bars, results)
    axes = bottom.subplots(2, len(sites))
    for column, site in enumerate(sites):
        part = load_site(Path(run["data"]) / site, site, model.settings)["test"]
        image, labels = part.images[:1], part.labels[0]
        selector = build_inference_selector(model.settings, len(sites), model.networks["selector"], CPU)
        chosen = int(select(selector.probabilities(image), results["gamma"])[0])
        names = [GLOBAL, *map(personal, sites)]
        for row, (title, name) in enumerate((("FedAvg", GLOBAL), ("FedSM", names[chosen]))):
            draw_image(axes[row, column], image[0], labels, predict(model, name, image), list(PREDICTION))
            shown = f"{site}\n{title}: {name}" if row == 0 else f"{title}: {name.replace('personal.', '')}"
            axes[row, column].set_title(shown, fontsize=11)
    bottom.suptitle(
        "one test image per site, and the model that segments it: truth white, disc green, cup blue", fontsize=12
    )
    figure.savefig(args.out, dpi=110)


@torch.no_grad()
def predict(model, name: str, image: torch.Tensor) -> torch.Tensor:
    """The masks (L, H, W) of one network."""
    net = build_unet(model.settings.task).eval()
    net.load_state_dict(model.networks[name])
    return net(image)[0] > 0


def draw_curves(axes, results: dict) -> None:
    """Validation Dice of the global and the personal models, round by round."""
    history = results["validation"]["history"]
    rounds = [row["round"] for row in history]
    for track, label, colour in (("global", "FedAvg (global)", "#888888"), ("personal", "personal", "#1f77b4")):
        for site in results["sites"]:
            values = [row["validation"][track].get(site, np.nan) for row in history]
            axes.plot(rounds, values, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(rounds, [row["score"][track] for row in history], color=colour, label=label, linewidth=2)
    axes.set(xlabel="round", ylabel="validation Dice", title="training (thin lines: single sites)")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)


def draw_bars(axes, results: dict) -> None:
    """Test Dice of each site: FedAvg beside FedSM."""
    names = [*results["sites"], "client avg"]
    positions = np.arange(len(names))
    for offset, key, label, colour in ((-0.2, "global", "FedAvg", "#888888"), (0.2, "super_model", "FedSM", "#1f77b4")):
        table = results["test"][key]
        values = [*table["per_site"].values(), table["client_avg"]]
        drawn = axes.bar(positions + offset, values, 0.38, label=label, color=colour)
        axes.bar_label(drawn, fmt="%.2f", fontsize=9)
    axes.set_xticks(positions, names, fontsize=10)
    axes.set(ylim=(0, 1.08), ylabel="test Dice", title="test images of every site")
    axes.legend(loc="lower left", ncols=2)


def draw_image(axes, image: torch.Tensor, labels: torch.Tensor, predicted: torch.Tensor, names: list[str]) -> None:
    """An image with the outlines of truth and prediction."""
    axes.imshow(image.permute(1, 2, 0))
    for index, name in enumerate(names):
        for mask, colour, style in ((labels[index], TRUTH, "dashed"), (predicted[index], PREDICTION[name], "solid")):
            if mask.any():
                axes.contour(mask.float(), [0.5], colors=[colour], linewidths=1.1, linestyles=style)
    axes.set_axis_off()


if __name__ == "__main__":
    main()
