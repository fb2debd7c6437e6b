"""What the privacy of whole sites costs in Dice: `python -m benchmarks.update_privacy DATA --task nuclei`.

Trains FedAvg without `update_privacy`, then with it at several noise multipliers, and says the epsilon of each as
results.json has it. A run is one federation in this process (`benchmarks/cells.py`). Multiplier `clip` is the clip
alone, with a noise too small to matter. No bar: the table is in `docs/explanation/differential-privacy.md`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import mean

from app_fedsm.config.build import build_settings
from benchmarks.cells import fill, play
from benchmarks.process import Failed, say

_NO_NOISE = 1e-9  # a multiplier above 0 that no weight notices
MULTIPLIERS = ("none", "clip", "0.001", "0.003", "0.01", "0.03", "0.1", "1")


def cell(multiplier: str, seed: int, args: argparse.Namespace) -> dict:
    """Runs one job; returns the global model's test Dice (client average), epsilon, and the longest update's norm."""
    overrides = [f"task.unet.channels={args.channels}", "task.unet.residual_units=1"]
    if multiplier != "none":
        noise = _NO_NOISE if multiplier == "clip" else float(multiplier)
        overrides.append(f"update_privacy={{clip: {args.clip}, noise_multiplier: {noise}, delta: {args.delta}}}")
    settings = build_settings(
        args.task, "fedavg", rounds=args.rounds, seed=seed, size=args.size, batch_size=args.batch_size, lr=args.lr,
        round_timeout=3600, site_weights="equal", overrides=overrides,
    )  # fmt: skip
    results, _ = play(args.out / "federation", args.data, settings)
    private = results.get("update_privacy") or {}
    conduct = [row.get("conduct") or {} for row in results["validation"]["history"]]
    norms = [seen["norm"] for row in conduct for seen in row.get("global", {}).values() if seen.get("norm")]
    return {
        "dice": results["test"]["global"]["client_avg"],
        "epsilon": private.get("epsilon"),
        "best_round": results["validation"]["best"]["global"]["round"],
        "median_norm": sorted(norms)[len(norms) // 2] if norms else None,
    }


def table(cells: dict[str, dict], multipliers: list[str], seeds: list[int]) -> str:
    """A row for each multiplier: epsilon and the mean Dice of the seeds, with each seed's."""
    rows = [["noise multiplier", "epsilon", "Dice", "each seed"], ["---", "---:", "---:", "---:"]]
    for multiplier in multipliers:
        found = [cells[name] for seed in seeds if (name := _name(multiplier, seed)) in cells]
        if found:
            epsilon = found[0]["epsilon"]
            dice = [cell["dice"] for cell in found]
            said = "infinite" if epsilon is None or multiplier == "clip" else f"{epsilon:.3g}"
            rows.append([multiplier, said, f"{mean(dice):.3f}", ", ".join(f"{value:.3f}" for value in dice)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _name(multiplier: str, seed: int) -> str:
    return f"multiplier {multiplier}, seed {seed}"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.update_privacy", description=__doc__.partition(": `")[0])
    parser.add_argument("data", type=Path, help="data root with one folder per site")
    parser.add_argument("--task", default="nuclei")
    parser.add_argument("--size", type=int, default=64, help="pixels (default: 64)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--channels", default="[8,16,32]", help="of the U-Net (default: [8,16,32])")
    parser.add_argument("--clip", type=float, default=2.0, help="of an update's norm (default: 2)")
    parser.add_argument("--delta", type=float, default=1e-2)
    parser.add_argument("--multipliers", nargs="+", default=list(MULTIPLIERS), metavar="Z")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=10, help="processor time of this call (default: 10)")
    parser.add_argument("--out", type=Path, default=Path("runs/update_privacy"), metavar="DIR")
    args = parser.parse_args(argv)
    args.out, args.data = args.out.resolve(), args.data.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = ((_name(z, seed), partial(cell, z, seed, args)) for seed in args.seeds for z in args.multipliers)
    try:
        print(table(fill(args.out, wanted, args.minutes), args.multipliers, args.seeds))
    except Failed as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
