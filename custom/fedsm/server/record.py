"""What a run has been so far: history, best rounds, bytes and seconds. Plain values, kept in every checkpoint."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.server.checkpoint import Checkpoints
from fedsm.tracks.base import ServerTrack


@dataclass
class RunRecord:
    """The story of a run.

    Attributes:
        run_id: names the run; a resumed one has the same.
        sites: the sites in index order.
        history: a row a round: who answered, losses, seconds, and the validation of the models it made.
        best: model name -> the round it was best in, its score and its weight file.
        wire: `down_bytes` and `up_bytes`, site -> bytes of each round (0: took no part); `delivery_up_bytes`, site ->
            bytes of the networks that it handed over after training.
    """

    run_id: str
    sites: list[str]
    history: list[dict] = field(default_factory=list)
    best: dict[str, dict] = field(default_factory=dict)
    wire: dict[str, dict] = field(default_factory=lambda: {"down_bytes": {}, "up_bytes": {}, "delivery_up_bytes": {}})

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def add_validation(self, number: int, tracks: dict[str, ServerTrack], reports: dict[str, dict]) -> None:
        """Notes the sites' reports on the models that round `number` made, and which of them are the best so far.

        Args:
            number: the round whose models were validated (0: the initial ones).
            tracks: the job's tracks.
            reports: site -> track -> report.
        """
        row = self.history[number - 1] if number else {}
        for name, track in tracks.items():
            by_site = {site: r[name] for site, r in reports.items() if r.get(name)}
            if not by_site:
                continue
            row.setdefault("validation", {})[name] = {site: r["score"] for site, r in by_site.items()}
            scores = {}
            for model in track.models() or [name]:
                judged = {s: (r["score"], r["images"]) for s, r in by_site.items() if s in track.judges(model)}
                if not judged:
                    continue
                scores[model] = _pooled(judged)
                if model in track.models() and self._beats(model, judged):
                    file = Checkpoints.file_name(number, model)
                    self.best[model] = {"round": number, "score": scores[model], "file": file, "judged": judged}
            row.setdefault("score", {})[name] = sum(scores.values()) / len(scores)

    def _beats(self, model: str, judged: dict[str, tuple[float, int]]) -> bool:
        """Whether a model is better than the best so far, on the sites that judged both.

        The mean over whoever answered would make the best round one in which a difficult site was missing.
        """
        if model not in self.best:
            return True
        earlier = self.best[model]["judged"]
        common = set(judged) & set(earlier)
        if not common:
            return True
        return _pooled({s: judged[s] for s in common}) > _pooled({s: earlier[s] for s in common})

    def add_round(self, number: int, answered: dict[str, dict], missing: dict[str, str], seconds: float) -> dict:
        """Starts the row of a round that was just closed."""
        losses: dict[str, dict[str, float]] = {}
        for site, meta in answered.items():
            for track, loss in meta.get("losses", {}).items():
                losses.setdefault(track, {})[site] = loss
        row = {"round": number, "answered": sorted(answered), "missing": missing, "loss": losses, "seconds": seconds}
        self.history.append(row)
        return row

    def add_bytes(self, down: dict[str, int], up: dict[str, int]) -> None:
        """Notes what went down and came up in a round, for each site."""
        for key, sent in (("down_bytes", down), ("up_bytes", up)):
            for site in self.sites:
                self.wire[key].setdefault(site, []).append(sent.get(site, 0))

    def add_delivery(self, up: dict[str, int]) -> None:
        """Notes what sites handed over when the training of tracks had ended."""
        delivered = self.wire.setdefault("delivery_up_bytes", {})
        for site, sent in up.items():
            delivered[site] = delivered.get(site, 0) + sent


def _pooled(judged: dict[str, tuple[float, int]]) -> float:
    """Mean over all images of all sites."""
    return sum(score * images for score, images in judged.values()) / sum(images for _, images in judged.values())


class Progress:
    """`progress.jsonl`: a line an event, for whoever watches the run from outside."""

    def __init__(self, path: Path):
        self._path = path

    def tell(self, event: str, **values) -> None:
        """Appends one event."""
        with self._path.open("a") as f:
            f.write(json.dumps({"event": event, "time": time.time()} | values) + "\n")

    def events(self) -> list[dict]:
        """All that was told so far."""
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.is_file() else []
