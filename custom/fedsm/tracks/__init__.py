"""The tracks of a job: their two halves, made from its settings. The kinds are in `kinds.py`."""

from __future__ import annotations

from typing import Any

import torch

from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.tracks.base import ClientTrack, ServerTrack, SiteContext
from fedsm.tracks.ema_server import AveragedOverRounds
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.kinds import (
    KINDS,
    Kind,
    at_sites,
    complete_tracks,
    kind_of,
    knows_distance,
    lam_of,
    options_of,
    own_rounds,
    score_names,
    selection_rule,
    sends_sums,
    summed_tracks,
)
from fedsm.tracks.schedule import rate_factor
from fedsm.tracks.softpull import SoftPullServer
from fedsm.tracks.together import check_options, check_tracks

_AT_SERVER = (AveragedServer, SoftPullServer)  # U-Nets that travel; what stays at a site is averaged there


def client_tracks(settings: JobSettings, site: SiteContext) -> dict[str, ClientTrack]:
    """The client halves of a job's tracks; they are also put into `site.tracks`."""
    site.tracks.update(
        {
            name: kind_of(name, spec).client(settings, options_of(name, spec), site)
            for name, spec in settings.tracks.items()
        }
    )
    return site.tracks


def server_tracks(settings: JobSettings, sites: list[str], store: ModelStore = IN_MEMORY) -> dict[str, ServerTrack]:
    """The server halves of a job's tracks; `store` keeps the networks of single sites.

    Raises:
        UserError: see `check_tracks`.
    """
    check_tracks(settings, sites)
    tracks: dict[str, ServerTrack] = {}
    for name, spec in settings.tracks.items():
        track = kind_of(name, spec).server(name, settings, options_of(name, spec), sites, tracks, store)
        tracks[name] = AveragedOverRounds(track) if settings.ema and isinstance(track, _AT_SERVER) else track
    return tracks


def playing(tracks: dict[str, ServerTrack], number: int) -> list[str]:
    """The tracks that are trained in a round.

    A track with an option `rounds` has that many rounds at the end to itself: the others have finished by then.
    """
    own = {n: t.settings.rounds - t.options["rounds"] for n, t in tracks.items() if "rounds" in t.options}
    names = [name for name in tracks if number > own.get(name, 0)]
    return [name for name in names if name in own] or names


def rate_factor_in(settings: JobSettings, number: int) -> float:
    """The schedule's factor on the learning rate of the U-Nets in a round.

    Its length is that of the networks' training: the rounds that a selector has to itself do not count.
    """
    rounds = settings.rounds - own_rounds(settings)
    return rate_factor(settings.schedule, settings.warmup_rounds, min(number, rounds), rounds)


def build_inference_selector(settings: JobSettings, n_sites: int, tensors: Tensors, device: torch.device) -> Any:
    """The object whose `probabilities(images)` gives yhat, from the selector track's final tensors."""
    selector = kind_of("selector", settings.tracks["selector"]).selector
    assert selector is not None
    return selector(settings, n_sites, tensors, device)


__all__ = [
    "KINDS", "Kind", "at_sites", "build_inference_selector", "check_options", "check_tracks", "client_tracks",
    "complete_tracks", "kind_of", "knows_distance", "lam_of", "playing", "rate_factor_in", "score_names",
    "selection_rule", "sends_sums", "server_tracks", "summed_tracks",
]  # fmt: skip
