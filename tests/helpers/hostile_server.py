"""A server that sends a site whatever it likes, and what a real site's settings are in these tests."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from fedsm.client.site_settings import SiteLocation
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import REGISTER
from fedsm.core.tensors import Tensors

SITE = "hospital"


def real_site(folder: Path, data: Path, **own) -> SiteLocation:
    """A hospital: its own file says `data`, not `data_root`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fedsm_site.yaml").write_text(yaml.safe_dump({"data": str(data), "threads": 1, "device": "cpu"} | own))
    return SiteLocation(str(folder), str(folder), SITE, 1)


def meta_of(settings: JobSettings, run: int = 0) -> dict:
    """What comes with a task."""
    return {
        "round": 0,
        "run_id": f"{run:012x}",
        "sites": [SITE, "other"],
        "settings": settings.to_dict(),
        "tracks": None,
    }


def register(place: SiteLocation, settings: JobSettings, run: int = 0) -> Tensors:
    """The sums that a site sends when it registers. Each call is a new process at the site."""
    meta = meta_of(settings, run)
    return build_worker(place, REGISTER, meta).do(REGISTER, meta, {}, lambda: False).tracks["selector"]


def refusal(place: SiteLocation, settings: JobSettings, run: int = 0) -> UserError | None:
    """Why the site sends no sums; None: it sends them."""
    try:
        register(place, settings, run)
    except UserError as e:
        return e
    return None


def same(one: Tensors, other: Tensors) -> bool:
    """Whether two answers are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())
