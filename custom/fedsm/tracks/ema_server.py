"""The moving average (`ema.py`) of networks that travel, at the server: around the track that trains them.

A round sends both down, the weights to train from and their average to validate; after the last round only the average.
So `ema` costs one network more on the wire, down, and one more at the server, for each network of the track: in its
memory, or on its disk where the network itself is. What comes up is what comes without it.

    file of a checkpoint     content
    <model>                  the average: what competes for the best round
    <model>.raw              the weights that training goes on from
    <track>.ema.updates      how many rounds are in each average
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any

import torch

from fedsm.core.model_store import IN_MEMORY, ModelStore, opened, stored
from fedsm.core.state import copy, prefixed
from fedsm.core.tensors import Tensors
from fedsm.tracks.base import TRAIN, Membership, Phase, Report, ServerTrack
from fedsm.tracks.ema import AVERAGE, RoundAverage

_RAW, _UPDATES = "raw", "ema.updates"


class AveragedOverRounds(ServerTrack):
    """A track whose models are averaged over the rounds.

    A network changes in a round if one of the sites that score it answered: the shared one with every answer, a
    personal one with its own site's. The average of a network that did not change stays as it was.

    Args:
        track: the track; all its models are at the server.
    """

    def __init__(self, track: ServerTrack):
        super().__init__(track.name, track.settings, track.options, track.sites, track.tracks, track.store)
        self.track = track
        self.shared = track.shared
        files = track.files()
        self.averages = {model: self._before(model, files[model]) for model in track.models()}
        self._answered: set[str] = set()

    def _before(self, model: str, weights: Tensors) -> RoundAverage:
        name = _file(model)
        return RoundAverage(self.settings.ema, self._store_of(weights).copies([name], weights)[name])

    def _store_of(self, weights: Tensors) -> ModelStore:
        """Where the average of a network is kept: where the network is."""
        return self.store if stored(weights) else IN_MEMORY

    def open(self, number: int, best_models: Callable[[], dict[str, Tensors]]) -> None:
        self.track.open(number, best_models)

    def payload(self, phase: Phase, site: str) -> Tensors:
        average = next(self.averages[model].weights for model, sites in self.models().items() if site in sites)
        if phase == TRAIN:
            return self.track.payload(phase, site) | prefixed(AVERAGE, opened(average))
        return opened(average)

    def expects(self, phase: Phase) -> Tensors:
        return self.track.expects(phase)

    def problem(self, phase: Phase, tensors: Tensors, images: Mapping[str, int], report: Report) -> str | None:
        return self.track.problem(phase, tensors, images, report)

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        self.track.accept(phase, site, tensors, weight)
        if phase == TRAIN:
            self._answered.add(site)

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        warnings = self.track.close(phase, reports)
        if phase == TRAIN:
            files = self.track.files()
            for model, sites in self.models().items():
                if self._answered & set(sites):
                    new, store = self.averages[model].after(files[model]), self._store_of(files[model])
                    self.averages[model] = replace(new, weights=store.put(_file(model), new.weights))
            self._answered = set()
        return warnings

    def files(self) -> dict[str, Tensors]:
        averages = {model: average.weights for model, average in self.averages.items()}
        raw = {f"{stem}.{_RAW}" if stem in averages else stem: t for stem, t in self.track.files().items()}
        updates = {model: torch.tensor(average.updates) for model, average in self.averages.items()}
        return averages | raw | {f"{self.name}.{_UPDATES}": updates}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self.track.load_files(_raw_view(files))
        updates = files[f"{self.name}.{_UPDATES}"]
        raw = self.track.files()
        self.averages = {
            model: RoundAverage(
                self.settings.ema,
                self._store_of(raw[model]).adopt(_file(model), files[model]),
                int(updates[model]),
            )
            for model in self.models()
        }
        self._answered = set()

    def models(self) -> dict[str, list[str]]:
        return self.track.models()

    def held(self) -> Set[str]:
        return self.track.held()

    def facts(self) -> dict[str, Any]:
        return self.track.facts()

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site's average starts with its first round."""
        if not isinstance(self.track, Membership):
            return []
        view = _raw_view(files)
        changed = self.track.join(view, new)
        for model in [m for m in self.models() if m not in files]:
            files |= {model: copy(view[model]), f"{model}.{_RAW}": view[model]}
            files[f"{self.name}.{_UPDATES}"][model] = torch.tensor(0)
        return changed

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        if not isinstance(self.track, Membership):
            return
        view = _raw_view(files)
        self.track.leave(view, site)
        for model in [m for m in self.models() if m not in view]:
            del files[model], files[f"{model}.{_RAW}"], files[f"{self.name}.{_UPDATES}"][model]

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        if not isinstance(self.track, Membership):
            return model
        return self.track.leave_model(model, _raw_view(files), site)


def _file(model: str) -> str:
    return f"{model}.average"


def _raw_view(files: dict[str, Tensors]) -> dict[str, Tensors]:
    """A checkpoint's files as the tracks wrote them: the weights themselves in the place of their averages."""
    counts = [stem for stem in files if stem.endswith(f".{_UPDATES}")]
    averaged = {model for stem in counts for model in files[stem]}
    own = {*counts, *(f"{model}.{_RAW}" for model in averaged)}
    return {s: files[f"{s}.{_RAW}"] if s in averaged else tensors for s, tensors in files.items() if s not in own}
