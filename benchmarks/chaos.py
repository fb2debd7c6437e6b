"""A run in which everything goes wrong, against the same run undisturbed: `python -m benchmarks.chaos`.

A fifth of all answers is lost, a twentieth is rubbish, three trainers and the server are killed with `kill -9`. Real
FLARE processes, synthetic sites. Exit codes: 0 every bar is held, 1 one is not, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from app_fedsm.runs.simulate import stop_signals
from benchmarks.chaos_filter import LOST, RUBBISH
from benchmarks.chaos_kill import Killer
from benchmarks.chaos_plan import TRAINERS, Plan, draw
from benchmarks.chaos_replay import KILLED, accepted_updates, differences, log_errors, lost_updates, replay
from benchmarks.chaos_run import IMAGES, MIN_SITES, SIZE, disturbed, settings_of, undisturbed
from benchmarks.process import Failed, say
from benchmarks.report import Check, Outcome, save, table
from fedsm.data.synthetic import write_sites
from fedsm.super_model.artefact import load_super_model

WEIGHT_BAR, DICE_BAR, TRAINED_BAR = 1e-5, 0.02, 0.3
_ROOT = Path(__file__).resolve().parents[1]


def seen_faults(history: list[dict]) -> dict[tuple[int, str], str]:
    """(round, site) -> what results.json says happened: `LOST`, a name of `RUBBISH`, `killed` or the reason itself."""
    words = {kind: words for kind, (_, words) in RUBBISH.items()} | {LOST: "TASK_RESULT_FILTER_ERROR", "killed": KILLED}
    return {
        (row["round"], site): next((kind for kind, w in words.items() if w in reason), reason)
        for row in history
        for site, reason in row["missing"].items()
    }


def what_happened(plan: Plan, killer: Killer, seen: dict[tuple[int, str], str], cells: int) -> str:
    """The accidents as a table: as planned, and as results.json reports them."""
    planned = Counter(kind for by_round in plan.faults.values() for kind in by_round.values())
    found = Counter(seen.values())
    rows = [["accident", "planned", "in results.json", "of all site-rounds"]]
    for kind, name in [(LOST, "answer lost"), *((kind, f"rubbish: {kind}") for kind in RUBBISH)]:
        rows.append([name, str(planned[kind]), str(found[kind]), f"{found[kind] / cells:.1%}"])
    where = ", ".join(f"{site} in round {number}" for number, site in killer.trainers)
    rows.append(["trainer killed", str(TRAINERS), str(found["killed"]), where])
    after = "" if killer.server is None else f"resumed after round {killer.server}"
    rows.append(["server killed", "1", str(int(killer.server is not None)), after])
    others = len(seen) - sum(found[kind] for kind in [LOST, *RUBBISH, "killed"])
    rows.append(["anything else", "0", str(others), ""])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def measure(folder: Path, n_sites: int, rounds: int, seed: int) -> Outcome:
    """Runs everything and holds it against the bars.

    Raises:
        Failed: a run did not reach its end, or cannot be replayed.
    """
    settings = settings_of(rounds, seed)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    sites = write_sites(data, n_sites, seed, IMAGES, SIZE)
    plan = draw(seed, sites, rounds, MIN_SITES)
    started = time.monotonic()
    results, killer = disturbed(data, settings, sites, folder / "chaos", plan)
    chaos_seconds, started = time.monotonic() - started, time.monotonic()
    calm = undisturbed(data, settings, sites, folder / "undisturbed")
    calm_seconds = time.monotonic() - started

    history = results["validation"]["history"]
    seen = seen_faults(history)
    expected = {(number, site): kind for site, faults in plan.faults.items() for number, kind in faults.items()}
    expected |= dict.fromkeys(killer.trainers, "killed")
    surprises = sorted(cell for cell in seen.keys() | expected.keys() if seen.get(cell) != expected.get(cell))
    for number, site in surprises:
        say(f"round {number}, {site}: expected {expected.get((number, site))}, seen {seen.get((number, site))}")
    print(what_happened(plan, killer, seen, rounds * n_sites))

    log = accepted_updates(folder / "chaos")
    errors = log_errors(log, results)
    for error in errors:
        say(error)
    load_super_model(folder / "chaos" / "super_model")
    say(f"replaying {len(log)} accepted updates in a plain loop")
    replayed = replay(data, settings, sites, log, lost_updates(history, killer.advanced))
    apart = differences(folder / "chaos", replayed)
    dice, calm_dice = (r["test"]["super_model"]["client_avg"] for r in (results, calm))
    checks = [
        Check("rounds that are not in results.json", rounds - len(history), 0),
        Check("processes that were to be killed and were not", TRAINERS + 1 - len(killer.trainers)
              - (killer.server is not None), 0),
        Check("accidents that results.json tells otherwise", len(surprises), 0),
        Check("accepted updates that are lost or stand twice", len(errors), 0),
        Check("largest difference of a weight from the replay of the log", max(apart.values()), WEIGHT_BAR),
        Check("undisturbed run: 1 - Dice of the super model", 1 - calm_dice, TRAINED_BAR),
        Check("super model's Dice, distance from the undisturbed run", abs(dice - calm_dice), DICE_BAR),
    ]  # fmt: skip
    figures = {
        "accepted": len(log), "site_rounds": rounds * n_sites, "seen": dict(Counter(seen.values())),
        "trainers_killed": killer.trainers, "blows_that_missed": killer.missed, "server_killed_after": killer.server,
        "weights_apart": apart, "dice": dice, "dice_undisturbed": calm_dice,
        "seconds": chaos_seconds, "seconds_undisturbed": calm_seconds,
    }  # fmt: skip
    return Outcome(checks, figures)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), metavar="DIR", help="default: runs/chaos")
    parser.add_argument("--sites", type=int, default=6, metavar="K", help="default: 6")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="default: 30")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of training and of accidents (default: 0)")
    args = parser.parse_args(argv)
    folder = args.out.resolve()
    (folder / "home").mkdir(parents=True, exist_ok=True)
    os.environ["HOME"] = str(folder / "home")  # FLARE leaves files there
    # The simulator's processes load the filter by its name.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    torch.set_num_threads(1)  # as the sites: sums depend on it
    try:
        with stop_signals():
            outcome = measure(folder, args.sites, args.rounds, args.seed)
    except Failed as e:
        outcome = Outcome(error=str(e))
    save(folder / "report.json", {"chaos": outcome})
    print("\n" + table({"chaos": outcome}))
    if not outcome.error:
        figures = outcome.figures
        print(
            f"\nDice {figures['dice']:.4f}, undisturbed {figures['dice_undisturbed']:.4f};"
            f" {figures['accepted']} of {figures['site_rounds']} updates accepted; {figures['seconds']:.0f} s,"
            f" undisturbed {figures['seconds_undisturbed']:.0f} s; figures: {args.out / 'report.json'}"
        )
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(130)
