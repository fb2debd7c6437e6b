"""Rules against attacks: `python -m benchmarks.robust --nuclei ../shared/data/nuclei --out runs/robust`.

Trains FedSM for every pair of a rule (`aggregation`) and an attack, on six small synthetic retinal sites and on nuclei
split into six sites, and prints tables of the honest sites' Dice. A pair is one federation in this process, with the
default norm check (`benchmarks/cells.py`).

What is finished stands in `OUT/cells.json` and is not run again: a stopped table goes on. `--minutes` ends it after so
much processor time; what was not run shows as a dash. The most telling attacks come first.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import mean

import torch

from app_fedsm.config.build import build_settings
from benchmarks.cells import Fault, fill, in_round, play
from benchmarks.process import Failed, say
from benchmarks.robust_attacks import ATTACKS, Attack, patched
from benchmarks.robust_data import DATA, poisoned, write_data
from fedsm.core.dice import dice_per_image
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import load_site
from fedsm.data.site_folder import list_sites
from fedsm.flare import exchange
from fedsm.nets import build_unet
from fedsm.super_model.artefact import load_super_model

SIZE, ROUNDS, SITES = 32, 12, 6
RULES = {
    "mean": {"aggregation": "mean"},
    "trimmed mean, f = 1": {"aggregation": "trimmed_mean", "outliers": 1},
    "trimmed mean, f = 2": {"aggregation": "trimmed_mean", "outliers": 2},
    "median": {"aggregation": "median"},
    "multi-Krum, f = 1": {"aggregation": "multi_krum", "outliers": 1},
    "geometric median": {"aggregation": "geometric_median"},
}
FIGURES = {
    "global_validation": "global model, validation Dice of the honest sites (best round)",
    "global_test": "global model, test Dice of the honest sites",
    "super_test": "super model, test Dice of the honest sites",
    "global_patched": "global model, validation Dice of the honest sites' images with the backdoor's patch",
}


def settings_of(task: str, lr: float, rule: dict, rounds: int, size: int, seed: int) -> JobSettings:
    """A small FedSM job in which all six sites must answer: two of them may then be left out at each end."""
    return build_settings(
        task, "fedsm", rounds=rounds, seed=seed, size=size, batch_size=4, local_epochs=2, lr=lr, min_sites=SITES,
        round_timeout=600, selection="algorithm2", gammas=[0.0, 0.5, 0.9, 0.99, 1.0], **rule,
        overrides=["task.unet.channels=[8,16,32]", "task.unet.residual_units=1"],
    )  # fmt: skip


def fault_of(attack: Attack, hostile: tuple[str, ...]) -> Fault:
    """Changes the hostile sites' updates."""

    def fault(site, task, shareable, work):
        result = work()
        if attack.change and site.name in hostile and task == exchange.TRAIN:
            rng = torch.Generator().manual_seed(1000 * in_round(shareable) + hostile.index(site.name))
            for dxo in result["DXO"]["data"].values():
                dxo.data = attack.change(dxo.data, rng)
        return result

    return fault


def patched_dice(run: Path, data: Path, honest: list[str], settings: JobSettings) -> float:
    """Dice of the global model on the honest sites' validation images with the patch."""
    net = build_unet(settings.task).eval()
    net.load_state_dict(load_super_model(run / "super_model").networks["global"])
    dice = []
    for site in honest:
        part = load_site(data / site, site, settings)["validation"]
        images, labels = (torch.stack([one[i] for i in range(len(part))]) for one in (part.images, part.labels))
        shown = torch.stack([torch.from_numpy(patched(image.numpy())) for image in images])
        with torch.no_grad():
            found = net(shown).sigmoid() > 0.5
        dice.append(dice_per_image(found, labels.bool()).mean().item())
    return mean(dice)


def cell(name: str, rule: str, attack_name: str, seed: int, args: argparse.Namespace) -> dict:
    """Runs one pair; returns its figures."""
    out, data, attack = args.out, DATA[name], ATTACKS[attack_name]
    root = out / name
    hostile = data.hostile[len(data.hostile) - attack.hostile :]
    settings = settings_of(data.task, data.lr, RULES[rule], args.rounds, args.size, seed)
    source = poisoned(root, attack, hostile, out / f"{root.name}_{attack_name.replace(' ', '_')}")
    results, run = play(out / "federation", source, settings, list_sites(root), fault_of(attack, hostile))
    honest = [site for site in results["sites"] if site not in data.hostile]  # the same sites in every row
    judged, test = results["validation"]["best"]["global"]["judged"], results["test"]
    return {
        "global_validation": mean(judged[site][0] for site in honest),
        "global_test": mean(test["candidates"][site]["global"] for site in honest),
        "super_test": mean(test["super_model"]["per_site"][site] for site in honest),
        "global_patched": patched_dice(run, source, honest, settings),
        "gamma": results["gamma"],
        "best_round": results["validation"]["best"]["global"]["round"],
        "warned": dict(Counter(entry["site"] for entry in results["warned"])),
        "refused": dict(Counter(entry["site"] for entry in results["refused"])),
    }


def tables(cells: dict[str, dict], seeds: list[int]) -> str:
    """One Markdown table for each data set and figure: a row for each rule, a column for each attack.

    An entry is the mean of the seeds that were run; with fewer than all of them it has a star.
    """
    parts = []
    for name in DATA:
        for figure, title in FIGURES.items():
            attacks = ["none", "backdoor"] if figure == "global_patched" else list(ATTACKS)
            rows = [["rule", *attacks], ["---", *("---:" for _ in attacks)]]
            for rule in RULES:
                found = [[cells.get(_key(name, rule, attack, s), {}).get(figure) for s in seeds] for attack in attacks]
                rows.append([rule, *map(_entry, found)])
            parts.append("\n".join([f"{name}: {title}", "", *(f"| {' | '.join(row)} |" for row in rows)]))
    return "\n\n".join(parts)


def _entry(values: list[float | None]) -> str:
    run = [value for value in values if value is not None]
    return f"{mean(run):.3f}{'*' if len(run) < len(values) else ''}" if run else "-"


def _key(name: str, rule: str, attack: str, seed: int) -> str:
    return " | ".join([name, rule, attack, f"seed {seed}"])


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.robust", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/robust"), metavar="DIR", help="default: runs/robust")
    parser.add_argument("--nuclei", type=Path, metavar="DIR", help="the nuclei sites; without it only synthetic ones")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"default: {ROUNDS}")
    parser.add_argument("--size", type=int, default=SIZE, metavar="PX", help=f"default: {SIZE}")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="S", help="of weights, splits and batches (default: 0)"
    )
    parser.add_argument("--minutes", type=float, default=25, help="processor time of this call (default: 25)")
    parser.add_argument("--only", metavar="TEXT", default="", help="pairs whose name holds this")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in DATA if name != "nuclei" or args.nuclei]
    for name in names:
        write_data(name, args.out / name, args.nuclei, args.size)
    pairs = [
        (name, rule, attack, seed) for seed in args.seeds for attack in ATTACKS for name in names for rule in RULES
    ]
    wanted = ((_key(*pair), partial(cell, *pair, args)) for pair in pairs if args.only in _key(*pair))
    try:
        print(tables(fill(args.out, wanted, args.minutes), args.seeds))
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
