"""Does a thin wire cost Dice? `python -m benchmarks.wire_dice --breast ../shared/data/breast --out runs/wire_dice`.

Trains FedSM with each `wire` and seed, on the demo's synthetic retinal sites and on breast, small: 32 px and a small
U-Net unless told otherwise. A pair is one federation in this process, as in `benchmarks/robust.py`: what is finished
stands in `OUT/cells.json` and is not run again, and `--minutes` ends a call after so much processor time. The same at
full size, in the simulator: `fedsm experiment wire`.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from statistics import mean

import torch

from app_fedsm.config.build import build_settings
from benchmarks.process import Failed, say
from fedsm.core.files import write_json
from fedsm.data.site_folder import list_sites
from fedsm.data.synthetic import write_sites
from tests.helpers.federation import Federation, results_of

WORDS = ("float32", "int8", "bfloat16", "float16")
SEEDS = (0, 1, 2)
_MODELS = ("global", "super_model")
_TASKS = {"demo": ("retinal", 3e-3), "breast": ("breast", 1e-2)}


def play(name: str, word: str, seed: int, data: Path, out: Path, args: argparse.Namespace) -> dict:
    """Runs one job; returns its test Dice (client average) and the bytes of a site and round, up.

    Raises:
        Failed: the federation gave up.
    """
    task, lr = _TASKS[name]
    settings = build_settings(
        task, "fedsm", rounds=args.rounds, seed=seed, size=args.size, batch_size=4, lr=lr, round_timeout=3600,
        overrides=[f"wire={word}", f"task.unet.channels={args.channels}", "task.unet.residual_units=1"],
    )  # fmt: skip
    folder, started = out / "federation", time.process_time()
    shutil.rmtree(folder, ignore_errors=True)
    federation = Federation(folder, data, settings, list_sites(data)).run()
    if federation.panic:
        raise Failed(f"{name}, {word}, seed {seed}: {federation.panic}")
    results = results_of(federation)
    dice = {model: results["test"][model]["client_avg"] for model in _MODELS}
    up = max(max(counts) for counts in results["wire"]["up_bytes"].values())
    return dice | {"up_bytes": up, "cpu_seconds": time.process_time() - started}


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
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    demo = out / "demo"
    if not demo.is_dir():
        write_sites(demo, 6, 0, args.images, 2 * args.size)
    sources = {"demo": demo} | ({"breast": args.breast.resolve()} if args.breast else {})
    file = out / "cells.json"
    cells = json.loads(file.read_text()) if file.is_file() else {}
    for seed in SEEDS:
        for name, data in sources.items():
            for word in args.words:
                key = f"{name} {word} {seed}"
                if key in cells:
                    continue
                if time.process_time() > 60 * args.minutes:
                    say(f"stopped before {key}: {args.minutes:g} minutes of processor time are over")
                    print(tables(cells, args.words))
                    return 0
                cells[key] = play(name, word, seed, data, out, args)
                write_json(file, cells)
                say(f"{key}: {cells[key]}")
    print(tables(cells, args.words))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
