"""Rounds of a server without sites: the real aggregator and tracks, and answers that are made up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from safetensors.torch import save_file

from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.state import copy
from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.identity import set_sender
from fedsm.flare.task import TaskSpec
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import REGISTER, TRAIN, SiteContext

IMAGES = {"train": 10, "validation": 4, "test": 4}


class ServerRounds:
    """A server with K registered sites.

    Args:
        settings: the job's; with a statistics selector.
        count: K.
        store: where the personal models are kept.
    """

    def __init__(self, settings: JobSettings, count: int, store: ModelStore = IN_MEMORY):
        self.sites = [f"site-{i + 1}" for i in range(count)]
        self.contexts = {site: _context(site) for site in self.sites}
        self.aggregator = SoftPullAggregator()
        self.tracks = server_tracks(settings, self.sites, store)
        self.aggregator.bind(self.tracks, self.sites, settings)
        self.aggregator.begin(TaskSpec("a task", exchange.REGISTER, 0))
        sums = _sums(settings)
        for site in self.sites:  # each has its own tensors
            answer = exchange.pack({"selector": copy(sums)}, {"round": 0, "images": IMAGES}, DataKind.STATISTICS)
            assert self.aggregator.accept(answer, self.contexts[site]), self.aggregator.results.refused
        self.template = {n: t.expects(TRAIN) for n, t in self.tracks.items() if t.expects(TRAIN)}

    def update(self) -> dict[str, Tensors]:
        """An update of a site, by track; each one is different."""
        return {n: {k: 1e-3 * torch.randn_like(v) for k, v in t.items()} for n, t in self.template.items()}

    def answers(self, updates: list[dict[str, Any]]) -> dict[str, Shareable]:
        """An answer of each site; with fewer updates than sites they come again and again."""
        meta = {
            "round": 1,
            "images": IMAGES,
            "reports": {n: {"score": 0.5, "images": IMAGES["validation"]} for n in self.template},
            "losses": dict.fromkeys(self.template, 0.5),
        }
        packed = [exchange.pack(update, meta, DataKind.WEIGHT_DIFF) for update in updates]
        return {site: packed[i % len(packed)] for i, site in enumerate(self.sites)}

    def aggregate(self, answers: dict[str, Shareable]) -> float:
        """`accept` of every site and `aggregate`, all checks included; seconds."""
        self.aggregator.begin(TaskSpec("a task", exchange.TRAIN, 1))
        started = time.perf_counter()
        for site in self.sites:
            self.aggregator.accept(answers[site], self.contexts[site])
        self.aggregator.aggregate(self.contexts[self.sites[0]])
        seconds = time.perf_counter() - started
        assert len(self.aggregator.results.accepted) == len(self.sites), self.aggregator.results.refused
        self.aggregator.conduct()
        return seconds


def on_disk(update: dict[str, Tensors], folder: Path) -> dict[str, Any]:
    """The update as FLARE hands it over: received to the server's disk, each tensor to a file, and read when it is
    looked at."""
    received = {}
    for track, tensors in update.items():
        own = folder / track  # FLARE removes it when nobody refers to it any more
        own.mkdir(parents=True)
        places = {key: (str(own / f"chunk_{i}.safetensors"), key) for i, key in enumerate(tensors)}
        for key, (path, _) in places.items():
            save_file({key: tensors[key]}, path)
        lazy = LazyTensorDict(places, str(own))
        received[track] = {key: lazy.make_lazy_ref(key) for key in tensors}
    return received


def _context(site: str) -> FLContext:
    fl_ctx = FLContextManager(identity_name="server", job_id="job").new_context()
    fl_ctx.set_peer_context(FLContextManager(identity_name=site, job_id="job").new_context())
    set_sender(fl_ctx, site)
    return fl_ctx


def _sums(settings: JobSettings) -> Tensors:
    selector = client_tracks(settings, SiteContext(0, 2, torch.device("cpu")))["selector"]
    pictures = torch.rand(IMAGES["train"], settings.task.channels, 32, 32)
    return selector.send(REGISTER, [(pictures, pictures)])
