"""What the device processes of a site are told, in plain values: the same job, the same images, a part of each batch.

Nothing is read from `fedsm_site.yaml` again: it may have been changed since the trainer read it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedsm.client.site_settings import SiteSettings
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.data.cache import SiteCache
from fedsm.data.dataset import Part
from fedsm.data.site_rules import SiteRules
from fedsm.tracks.base import ClientTrack


@dataclass(frozen=True)
class DevicePlan:
    """One process's part.

    Attributes:
        rank: its number; the trainer is 0.
        count: of all processes.
        device: its device.
        threads: its CPU threads.
        meeting: the file by which the processes find each other.
        seconds: how long one waits for another.
        settings: the job's.
        name: the site's name.
        index: its index.
        sites: the names of all sites.
        run_id: names the run.
        autocast: what networks are trained in; None: float32.
        compile: the site's setting.
        streams: the site's setting.
        data: the site's folder.
        state_dir: its state.
        cache_dir: its cache.
        cache_budget: how large that may grow.
        workers: threads that decode.
        rules: as in `SiteRules`.
        files: a digest of the training images' names (`files_of`).
    """

    rank: int
    count: int
    device: str
    threads: int
    meeting: str
    seconds: float
    settings: dict[str, Any]
    name: str
    index: int
    sites: list[str]
    run_id: str
    autocast: str | None
    compile: bool
    streams: bool
    data: str
    state_dir: str
    cache_dir: str
    cache_budget: int
    workers: int
    rules: dict[str, Any]
    files: str

    def job(self) -> JobSettings:
        """The job's settings."""
        return JobSettings.from_dict(self.settings)

    def dtype(self) -> torch.dtype | None:
        """What networks are trained in; None: float32."""
        return getattr(torch, self.autocast) if self.autocast else None

    def place(self, settings: JobSettings) -> tuple[Any, ...]:
        """The arguments of `load_site`: as the trainer's own."""
        rules, cache = SiteRules(**self.rules), SiteCache(Path(self.cache_dir), self.cache_budget, self.workers)
        state = Path(self.state_dir)
        site = SiteSettings(
            Path(self.data), state, torch.device(self.device), self.threads, Path(self.cache_dir), self.cache_budget,
            self.workers, rules, max_statistics=1, min_patients=1,
        )  # fmt: skip
        return site.data, self.name, settings, state, rules, cache, site.imports


def plan_of(
    site: SiteSettings, settings: JobSettings, name: str, index: int, sites: list[str], run_id: str,
    autocast: torch.dtype | None, train: Part,
) -> DevicePlan:  # fmt: skip
    """The trainer's own plan; CPU threads are shared among the processes."""
    count = len(site.devices)
    return DevicePlan(
        rank=0, count=count, device=str(site.device), threads=max(1, site.threads // count), meeting="",
        seconds=float(settings.round_timeout), settings=settings.to_dict(), name=name, index=index, sites=sites,
        run_id=run_id, autocast=str(autocast).removeprefix("torch.") if autocast else None, compile=site.compile,
        streams=site.streams, data=str(site.data), state_dir=str(site.state_dir), cache_dir=str(site.cache_dir),
        cache_budget=site.cache_budget, workers=site.workers, rules=asdict(site.rules), files=files_of(train),
    )  # fmt: skip


def files_of(part: Part) -> str:
    """A digest of a part's files: the same images in the same rows."""
    return hashlib.sha256(repr((part.files, part.counts, len(part))).encode()).hexdigest()


def add_up_losses(totals: Tensors, add_up: Callable[[torch.Tensor], None]) -> Tensors:
    """The sums of the losses over the images of all devices; every process calls it after a pass."""
    if not totals:
        return {}
    summed = torch.stack(list(totals.values()))
    add_up(summed)
    return dict(zip(totals, summed, strict=True))


def weight_sums(tracks: Mapping[str, ClientTrack]) -> dict[str, float]:
    """The sum of the size of each trained network's weights, which is the same on all devices."""
    sums = {}
    for name, track in tracks.items():
        if not track.sums:
            weights = track.learner.net.parameters()  # type: ignore[attr-defined]
            sums[name] = torch.stack([w.detach().double().abs().sum() for w in weights]).sum().item()
    return sums
