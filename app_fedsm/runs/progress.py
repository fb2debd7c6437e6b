"""One bar over the rounds, from the events of `progress.jsonl`."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from fedsm.core.text import one_line


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
    """Moves the bar; returns the reason, if the event is that the run failed."""
    if event["event"] == "failed":
        return one_line(event["reason"], 2000)
    if event["event"] in ("refused", "warned"):
        line = f"round {event['round']}: site {event['site']} {event['event']}: {event['reason']}"
        bar.write(one_line(line, 2000), sys.stderr)
        return None
    if event["event"] == "started":
        bar.update(event["round"])
        bar.set_description("training")
    elif event["event"] == "round":
        bar.update(event["round"] - bar.n)
        score = {f"dice {k}" if k != "selector" else "selector": f"{v:.3f}" for k, v in event["score"].items()}
        if event["missing"]:
            score["missing"] = one_line(",".join(event["missing"]))
        bar.set_postfix(score)
    elif event["event"] == "scored":
        bar.update(1)
    else:
        bar.set_description(one_line(event["event"]))
    return None
