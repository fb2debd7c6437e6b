"""The record of a run so far: history, best rounds, bytes and seconds. Plain values, kept in every checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.core.files import write_text
from fedsm.core.shares import trimmed_mean
from fedsm.server.checkpoint import Checkpoints
from fedsm.server.conduct import new_seed
from fedsm.server.levels import gain
from fedsm.tracks.base import DELIVER, ServerTrack

MOST_NOTES = 50  # refusals and warnings of one site that are kept one by one; the rest is counted
_SAME = 1e-6  # scores of one network on one machine
_WIRE = ("down_bytes", "up_bytes", "registration_up_bytes", "delivery_down_bytes", "delivery_up_bytes")


@dataclass
class RunRecord:
    """What has happened in a run so far.

    Attributes:
        run_id: names the run; a resumed one has the same.
        sites: the sites in index order.
        history: one row per round: who answered, losses, seconds, and the validation of the models it made.
        best: model name -> the round it was best in, its score, its weight file, and in `judged` each site's score
            and number of images.
        wire: `down_bytes` and `up_bytes`, site -> bytes of each round (0: took no part); beside them site -> bytes of
            `registration_up_bytes`, what it sent before its first round, `delivery_down_bytes`, the last models, which
            it validated, and `delivery_up_bytes`, what it handed over then.
        images: site -> images of each part, as it registered last.
        refused: answers that were not taken: `round`, `task`, `site`, `reason`.
        warned: answers that were taken with a warning: a norm far from the others', a share that was limited.
        uncounted: site -> refusals and warnings beyond the limit, which are not listed.
        norms: track -> the norms of the last rounds' updates; see `NormGuard`.
        forgotten: sites that have left for good (`fedsm forget`).
        facts: track -> what it says of itself when its training is over.
        personal_mix: site -> the `share` of the others' models in its own, and in `curve` its Dice at each share.
        conduct_seed: draws the entries by which updates are compared; see `conduct.py`.
        warnings: site -> what `Quarantine` counts.
        quarantined: who went into quarantine: `round`, `site`, `until`, the last round that it is not asked in, and the
            `reason`.
        dp: site -> what it said last of the privacy of its training.
    """

    run_id: str
    sites: list[str]
    history: list[dict] = field(default_factory=list)
    best: dict[str, dict] = field(default_factory=dict)
    wire: dict[str, dict] = field(default_factory=lambda: {key: {} for key in _WIRE})
    images: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: list[dict] = field(default_factory=list)
    warned: list[dict] = field(default_factory=list)
    uncounted: dict[str, int] = field(default_factory=dict)
    norms: dict[str, list[list[float]]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    facts: dict[str, dict] = field(default_factory=dict)
    personal_mix: dict[str, dict] = field(default_factory=dict)
    conduct_seed: int = field(default_factory=new_seed)
    warnings: dict[str, dict[str, int]] = field(default_factory=dict)
    quarantined: list[dict] = field(default_factory=list)
    dp: dict[str, dict] = field(default_factory=dict)

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def admit(self, sites: list[str]) -> None:
        """Appends sites that join: those that are there keep their index."""
        self.sites = [*self.sites, *sites]
        for key in ("down_bytes", "up_bytes"):
            self.wire[key] |= {site: [0] * len(self.history) for site in sites}

    def note(self, refused: bool, entry: dict) -> bool:
        """Keeps a refusal or a warning; False if its site has too many already: then it is only counted."""
        notes, site = self.refused if refused else self.warned, entry["site"]
        if sum(other["site"] == site for other in notes) >= MOST_NOTES:
            self.uncounted[site] = self.uncounted.get(site, 0) + 1
            return False
        notes.append(entry)
        return True

    def add_validation(
        self, number: int, tracks: dict[str, ServerTrack], reports: dict[str, dict], delivered: bool = False
    ) -> None:
        """Notes the sites' reports on the models that round `number` made, and which of them are the best so far.

        Args:
            number: the round whose models were validated (0: the initial ones).
            tracks: the job's tracks.
            reports: site -> track -> report.
            delivered: whether it is the validation after the last round: networks that were handed over then are the
                best of all rounds, not of the last.
        """
        row = self.history[number - 1] if number else {}
        for name, track in tracks.items():
            by_site = {site: r[name] for site, r in reports.items() if r.get(name)}
            if not by_site:
                continue
            row.setdefault("validation", {})[name] = {site: r["score"] for site, r in by_site.items()}
            scores = {}
            files = track.files()
            models = {model: sites for model, sites in track.models().items() if model in files}
            for model, scoring_sites in (models or {name: track.sites}).items():
                results = {s: (r["score"], r["images"]) for s, r in by_site.items() if s in scoring_sites}
                if not results:
                    continue
                scores[model] = _pooled(results)
                sampled = track.settings.fraction < 1 and len(scoring_sites) > 1
                if model in models and self._beats(model, results, number if sampled else None):
                    handed_over = delivered and track.expects(DELIVER)
                    made = self._made_in(name, next(iter(results)), number) if handed_over else number
                    file = Checkpoints.file_name(number, model)
                    self.best[model] = {"round": made, "score": scores[model], "file": file, "judged": results}
            row.setdefault("score", {})[name] = sum(scores.values()) / len(scores)

    def _made_in(self, track: str, site: str, last: int) -> int:
        """The round that made the network that a site handed over after the last one: the first with its score."""
        scores = [row.get("validation", {}).get(track, {}).get(site, -1.0) for row in self.history[:last]]
        return next(number for number, score in enumerate(scores, start=1) if score > scores[-1] - _SAME)

    def _beats(self, model: str, results: dict[str, tuple[float, int]], sampled: int | None = None) -> bool:
        """Whether a model is better than the best so far, on the sites that scored both.

        With the mean over all sites that answered, a round in which a difficult site was missing would be the best.
        The trimmed mean of the sites' differences is used, so that one of four or more sites cannot choose the round.
        With `fraction`, few sites or none scored both: `levels.py` compares the rounds by all scores so far. Of two
        that nothing links, as in a run's first rounds, the later one is taken.

        Args:
            model: the model.
            results: site -> score and number of images.
            sampled: with `fraction`, for a network that several sites score, the round; else None.
        """
        if model not in self.best:
            return True
        best = self.best[model]
        earlier = best["judged"]
        if sampled is not None:
            scores = {row["round"]: row.get("validation", {}).get(model, {}) for row in self.history}
            scores |= {best["round"]: {site: judged[0] for site, judged in earlier.items()}}
            scores |= {sampled: {site: score for site, (score, _) in results.items()}}
            better = gain(scores, sampled, best["round"])
            return better is None or better > _SAME
        common = set(results) & set(earlier)
        if not common:
            return True
        return trimmed_mean([results[s][0] - earlier[s][0] for s in common]) > 0

    def add_round(
        self, number: int, answered: dict[str, dict], missing: dict[str, str], seconds: float, attempts: int = 1
    ) -> dict:
        """Starts the row of a round that was just closed."""
        losses: dict[str, dict[str, float]] = {}
        for site, meta in answered.items():
            for track, loss in meta.get("losses", {}).items():
                losses.setdefault(track, {})[site] = loss
        row = {"round": number, "answered": sorted(answered), "missing": missing, "loss": losses, "seconds": seconds}
        row["attempts"] = attempts
        private = {site: meta["dp"] for site, meta in answered.items() if "dp" in meta}
        if private:
            row["epsilon"] = {site: report["epsilon"] for site, report in private.items()}
            self.dp |= private
        self.history.append(row)
        return row

    def add_bytes(self, down: dict[str, int], up: dict[str, int]) -> None:
        """Notes what went down and came up in a round, for each site."""
        for key, sent in (("down_bytes", down), ("up_bytes", up)):
            for site in self.sites:
                self.wire[key].setdefault(site, []).append(sent.get(site, 0))

    def add_once(self, key: str, sent: dict[str, int]) -> None:
        """Notes what sites sent or got outside the rounds; `key` is one of `wire`'s."""
        noted = self.wire.setdefault(key, {})
        for site, count in sent.items():
            noted[site] = noted.get(site, 0) + count


def _pooled(results: dict[str, tuple[float, int]]) -> float:
    """Mean over all images of all sites."""
    return sum(score * images for score, images in results.values()) / sum(images for _, images in results.values())


class AcceptedLog:
    """`accepted.jsonl`: one line for each update that became part of the models, in the order of merging.

    A line holds `round`, `site`, `n_images` (its weight in averages, see `Registry.shares`) and `norms`
    (track -> norm of the update as it was merged). Each round stands there once, also in a run that was killed and
    resumed: what comes after the checkpoint that it goes on from is dropped.
    """

    NAME = "accepted.jsonl"

    def __init__(self, folder: Path):
        self._path = folder / self.NAME

    def adopt(self, folder: Path, last: int) -> None:
        """Takes over the lines of an earlier run up to its round `last`."""
        earlier = folder / self.NAME
        lines = earlier.read_text().splitlines() if earlier.is_file() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["round"] <= last]
        write_text(self._path, "".join(line + "\n" for line in kept))

    def add(self, number: int, weights: dict[str, float], norms: dict[str, dict[str, float]]) -> None:
        """Appends the updates of a round, site -> weight; called before its checkpoint is written.

        Norms that nobody may know are left out.
        """
        with self._path.open("a") as f:
            for site, weight in weights.items():
                line = {"round": number, "site": site, "n_images": weight, "norms": norms.get(site, {})}
                f.write(json.dumps(line) + "\n")


class Progress:
    """`progress.jsonl`: one line per event, for programs and people that follow the run from outside."""

    def __init__(self, path: Path):
        self._path = path

    def tell(self, event: str, **values: object) -> None:
        """Appends one event."""
        with self._path.open("a") as f:
            f.write(json.dumps({"event": event, "time": time.time()} | values) + "\n")

    def events(self) -> list[dict]:
        """All events so far, without a line that is being written or that a full disk cut short."""
        events = []
        for line in self._path.read_text().splitlines() if self._path.is_file() else []:
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        return events
