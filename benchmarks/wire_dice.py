"""Does a thin wire cost Dice? `python -m benchmarks.wire_dice --breast ../shared/data/breast --out runs/wire_dice`.

Trains FedSM with each `wire` and seed, on the demo's synthetic retinal sites and on breast, small: 32 px and a small
U-Net unless told otherwise. A pair is one federation in this process (`benchmarks/cells.py`): what is finished stands
in `OUT/cells.json` and is not run again, and `--minutes` ends a call after so much processor time. The same at full
size, in the simulator: `fedsm experiment wire`.
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
from fedsm.data.synthetic import write_sites

WORDS = ("float32", "int8", "bfloat16", "float16")
SEEDS = (0, 1, 2)
_MODELS = ("global", "super_model")
_TASKS = {"demo": ("retinal", 3e-3), "breast": ("breast", 1e-2)}


def cell(name: str, word: str, seed: int, data: Path, args: argparse.Namespace) -> dict:
    """Runs one job; returns its test Dice (client average) and the bytes of a site and round, up."""
    task, lr = _TASKS[name]
    settings = build_settings(
        task, "fedsm", rounds=args.rounds, seed=seed, size=args.size, batch_size=4, lr=lr, round_timeout=3600,
        overrides=[f"wire={word}", f"task.unet.channels={args.channels}", "task.unet.residual_units=1"],
    )  # fmt: skip
    results, _ = play(args.out / "federation", data, settings)
    dice = {model: results["test"][model]["client_avg"] for model in _MODELS}
    return dice | {"up_bytes": max(max(counts) for counts in results["wire"]["up_bytes"].values())}


def tables(cells: dict[str, dict], words: list[str]) -> str:
    """A table for each data set: float32's Dice, and what the others differ by, seed by seed."""
    parts = []
    for name in _TASKS:
        rows = [["wire", "up, of float32", *_MODELS], ["---", *["---:"] * (1 + len(_MODELS))]]
        for word in words:
            pairs = [(cells.get(f"{name} {word} {s}"), cells.get(f"{name} float32 {s}")) for s in SEEDS]
            both = [(own, base) for own, base in pairs if own and base]
            if not both:
                continue
            row = [word, f"{both[0][0]['up_bytes'] / both[0][1]['up_bytes']:.3f}"]
            for model in _MODELS:
                differences = [own[model] - base[model] for own, base in both]
                each = ", ".join(f"{d:+.4f}" for d in differences)
                plain = f"{mean(own[model] for own, _ in both):.4f}"
                row.append(plain if word == "float32" else f"{plain}: {mean(differences):+.4f} ({each})")
            rows.append(row)
        parts.append("\n".join([name, "", *(f"| {' | '.join(row)} |" for row in rows)]))
    return "\n\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.wire_dice", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/wire_dice"), metavar="DIR")
    parser.add_argument("--breast", type=Path, metavar="DIR", help="the breast sites; without it only the demo")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--size", type=int, default=32, metavar="PX", help="default: 32")
    parser.add_argument("--channels", default="[8,16,32]", help="of the U-Net (default: [8,16,32])")
    parser.add_argument("--images", type=int, default=24, metavar="N", help="of the demo's median site (default: 24)")
    parser.add_argument("--words", nargs="+", default=list(WORDS[:2]), choices=WORDS, help="default: float32 int8")
    parser.add_argument("--minutes", type=float, default=10, help="processor time of this call (default: 10)")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    demo = args.out / "demo"
    if not demo.is_dir():
        write_sites(demo, 6, 0, args.images, 2 * args.size)
    sources = {"demo": demo} | ({"breast": args.breast.resolve()} if args.breast else {})
    wanted = (
        (f"{name} {word} {seed}", partial(cell, name, word, seed, data, args))
        for seed in SEEDS
        for name, data in sources.items()
        for word in args.words
    )
    try:
        print(tables(fill(args.out, wanted, args.minutes), args.words))
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
