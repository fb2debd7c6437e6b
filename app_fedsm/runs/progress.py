"""One bar over the rounds, from the events of `progress.jsonl`. Start-up and the end are shown as separate phases."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tqdm import tqdm

from fedsm.core.text import one_line

WITHOUT_ROUNDS = "{desc} [{elapsed}]"  # nothing to count, and no time left to guess
_STARTED, _ROUND, _REGISTERED = "started", "round", "registered"


class Tail:
    """The whole lines that were added to a file since the last look."""

    def __init__(self, path: Path, position: int = 0):
        self._path = path
        self._position = position

    def read(self) -> list[bytes]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as f:
            f.seek(self._position)
            data = f.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()


def show(bar: tqdm, event: dict) -> str | None:
    """Moves the bar; returns the reason, if the event is that the run failed.

    A bar of rounds begins with `bar_format=WITHOUT_ROUNDS`; its time per round does not count the start-up.
    """
    kind = event["event"]
    if kind == "failed":
        return one_line(event["reason"], 2000)
    if kind in ("refused", "warned"):
        line = f"round {event['round']}: site {event['site']} {kind}: {event['reason']}"
        bar.write(one_line(line, 2000), sys.stderr)
    elif kind == "quarantined":
        line = f"round {event['round']}: site {event['site']} in quarantine until round {event['until']}"
        bar.write(one_line(f"{line}: {event['reason']}", 2000), sys.stderr)
    elif kind == _STARTED:  # the sites load torch and their images, and register
        _set_phase(bar, "starting the sites", event["round"])
    elif kind == _REGISTERED:
        _begin_rounds(bar, event["round"], 0)
    elif kind == _ROUND:
        if bar.bar_format == WITHOUT_ROUNDS:
            _begin_rounds(bar, event["round"] - 1, event.get("seconds", 0))
        bar.update(event["round"] - bar.n)
        score = {f"dice {k}" if k != "selector" else "selector": f"{v:.3f}" for k, v in event["score"].items()}
        if event["missing"]:
            score["missing"] = one_line(",".join(event["missing"]))
        bar.set_postfix(score)
    elif kind == "scored":
        bar.update(1)
    elif bar.unit == _ROUND:  # validating, evaluating, finished: the rounds are done
        rounds = f"{bar.n} rounds done, " if bar.n else ""
        _set_phase(bar, rounds + one_line(kind), bar.n)
    else:
        bar.set_description(one_line(kind))
    return None


def tick(bar: tqdm) -> None:
    """Updates the clock on a terminal while there are no events; in a file each update would be a line."""
    if sys.stderr.isatty():
        bar.refresh()


def _set_phase(bar: tqdm, words: str, done: float) -> None:
    """Shows what is going on and for how long, with a clock of its own."""
    bar.bar_format = WITHOUT_ROUNDS
    bar.set_description_str(words, refresh=False)
    _set_clock(bar, done, 0)


def _begin_rounds(bar: tqdm, done: float, seconds: float) -> None:
    """Shows the bar of rounds, as if it had begun so many seconds ago."""
    bar.bar_format = None
    bar.set_description("training", refresh=False)
    _set_clock(bar, done, seconds)


def _set_clock(bar: tqdm, done: float, seconds: float) -> None:
    form, bar.bar_format = bar.bar_format, "{desc}"
    bar.reset()  # which draws, with 0 rounds: without figures until they are right
    bar.bar_format = form
    bar.n = bar.initial = bar.last_print_n = done
    bar.start_t = bar.last_print_t = time.time() - seconds
    bar.refresh()
