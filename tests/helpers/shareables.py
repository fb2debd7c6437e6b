"""Answers of a site as the aggregator gets them, made by hand."""

from __future__ import annotations

import torch
from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable

from fedsm.flare import exchange
from fedsm.flare.identity import set_sender
from fedsm.selectors.descriptor import describe
from fedsm.selectors.gaussian import pack
from fedsm.tracks.base import TRAIN

IMAGES = {"train": 10, "validation": 4, "test": 4}


def context(site: str) -> FLContext:
    fl_ctx = FLContextManager(identity_name="server", job_id="job").new_context()
    fl_ctx.set_peer_context(FLContextManager(identity_name=site, job_id="job").new_context())
    set_sender(fl_ctx, site)
    return fl_ctx


def update(aggregator, **changes) -> Shareable:
    """A good answer of round 5, or one with `changes` to its meta."""
    tracks = {n: {k: torch.ones_like(v) for k, v in t.expects(TRAIN).items()} for n, t in aggregator.tracks.items()}
    return exchange.pack(tracks, {"round": 5, "images": IMAGES} | changes, DataKind.WEIGHT_DIFF)


def real_sums(n: int) -> dict[str, torch.Tensor]:
    """What a site of n images sends for a statistics selector."""
    rows = describe(torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return {"n": torch.tensor(float(n), dtype=torch.float64), "sum": rows.sum(0), "outer": pack(rows.T @ rows)}


def snapshot(aggregator) -> dict:
    for track in aggregator.tracks.values():
        track.close(TRAIN)
    return {
        f"{stem}/{k}": v.clone()
        for track in aggregator.tracks.values()
        for stem, tensors in track.files().items()
        for k, v in tensors.items()
    }
