"""Replays the log of accepted updates: a plain loop that merges exactly what the log names, and nothing twice.

It rounds as the server does: sites send differences, which are summed in float32 in the order of the log. Training is
chaotic: with averages in float64 instead, weights differ by 0.02 after 30 undisturbed rounds, and a lost update could
not be distinguished from rounding.
"""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.fl_constant import ReturnCode

from benchmarks.chaos_filter import RUBBISH
from benchmarks.process import Failed
from fedsm.core.settings import JobSettings
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.record import AcceptedLog
from tests.helpers.plain_loop import algorithm_1, largest_difference

KILLED = "was ended by SIGKILL"


def accepted_updates(out: Path) -> list[dict]:
    """The lines of a run's accepted.jsonl."""
    return [json.loads(line) for line in (out / AcceptedLog.NAME).read_text().splitlines()]


def log_errors(log: list[dict], results: dict) -> list[str]:
    """Where the log and results.json disagree: updates that one of them lacks, has twice or weighs otherwise."""
    answered = [(row["round"], site) for row in results["validation"]["history"] for site in row["answered"]]
    logged = [(line["round"], line["site"]) for line in log]
    errors = [f"{cell} stands in the log {logged.count(cell)} times" for cell in set(logged) if logged.count(cell) > 1]
    errors += [f"{cell} was accepted and is not in the log" for cell in set(answered) - set(logged)]
    errors += [f"{cell} is in the log and was not accepted" for cell in set(logged) - set(answered)]
    images = {site: counts["train"] for site, counts in results["images"].items()}
    return errors + [
        f"{line['site']} weighs {line['n_images']} in round {line['round']}"
        for line in log
        if line["n_images"] != images[line["site"]]
    ]


def lost_updates(history: list[dict], advanced: set[tuple[int, str]] = frozenset()) -> dict[int, list[str]]:
    """Round -> the sites that trained in it for nothing: their Adam went on.

    Args:
        history: the rows of results.json.
        advanced: (round, site) of trainers that were killed after they had put their state on disk.

    Raises:
        Failed: a reason that does not show whether the site had trained.
    """
    after_training = (str(ReturnCode.TASK_RESULT_FILTER_ERROR), *(words for _, words in RUBBISH.values()))
    lost: dict[int, list[str]] = {}
    for row in history:
        for site, reason in row["missing"].items():
            if any(words in reason for words in after_training) or (row["round"], site) in advanced:
                lost.setdefault(row["round"], []).append(site)
            elif KILLED not in reason:
                raise Failed(f"round {row['round']} cannot be replayed: {site} was missing by itself: {reason}")
    return lost


def served_average(w: dict, trained: list[dict], n: list[int]) -> dict:
    """w + sum_k n_k (w_k - w) * 1 / n, in float32."""
    sums: dict = {}
    for model, count in zip(trained, n, strict=True):
        for key, value in model.items():
            change = value - w[key]
            sums[key] = sums[key].add(change, alpha=count) if key in sums else change * count
    return {key: value * (1 / sum(n)) + w[key] for key, value in sums.items()}


def served_pull(w: list[dict], trained: list[dict], lam: float) -> list[dict]:
    """w_k + t (m - w_k) with the mean m and t = (1 - lam) K / (K - 1), in float32: see `soft_pull_`."""
    count = len(trained)
    arrived = [{key: old[key] + (new[key] - old[key]) for key in old} for old, new in zip(w, trained, strict=True)]
    mean = {key: sum((model[key] for model in arrived[1:]), arrived[0][key]) / count for key in arrived[0]}
    t = (1 - lam) * count / (count - 1)
    return [{key: value.lerp(mean[key], t) for key, value in model.items()} for model in arrived]


def replay(data: Path, settings: JobSettings, sites: list[str], log: list[dict], lost: dict[int, list[str]]) -> dict:
    """Trains by the log; returns model -> weights after the last round."""
    merged = {number: [] for number in range(1, settings.rounds + 1)}
    for line in log:
        merged[line["round"]].append(line["site"])
    lam = settings.tracks["personal"].get("lam", settings.task.lam)
    merge = (served_average, served_pull)
    weights = algorithm_1(data, settings, sites, lam, "none", present=merged, lost=lost, merge=merge)
    return {model: w for model, w in weights.items() if model != "selector"}


def differences(out: Path, replayed: dict[str, dict]) -> dict[str, float]:
    """Model -> the largest difference between a run's last checkpoint and the replay."""
    checkpoints = Checkpoints(out / FOLDER)
    files = checkpoints.load()["files"]
    return {model: largest_difference(checkpoints.load_weights(files[model]), w) for model, w in replayed.items()}
