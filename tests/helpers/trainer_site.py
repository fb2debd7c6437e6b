"""A tiny site for tests of its trainer: settings, tasks and payloads without a federation."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import yaml

from fedsm.client.site_settings import SiteLocation, load_site_settings
from fedsm.client.site_trainer import SiteTrainer
from fedsm.client.trainer_link import COMMAND, TrainerLink
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import SITES, small_settings

SITE = SITES[1]
GO_ON = lambda: False  # noqa: E731


def small_job(**given):
    """One-thread settings whose rounds take parts of a second."""
    return small_settings(**({"selector": "gradient", "rounds": 4, "round_timeout": 600} | given))


def place_of(folder: Path, data_root: Path) -> SiteLocation:
    """A site's settings file in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fedsm_site.yaml").write_text(yaml.safe_dump({"data_root": str(data_root), "threads": 1}))
    return SiteLocation(str(folder), str(folder), SITE, 1)


def make_trainer(settings, folder: Path, data_root: Path, **own) -> SiteTrainer:
    """The site's trainer in this process, with some lines of its own in its file."""
    place = place_of(folder, data_root)
    file = Path(place.local) / "fedsm_site.yaml"
    file.write_text(file.read_text() + yaml.safe_dump(own) if own else file.read_text())
    site = load_site_settings(Path(place.local), Path(place.workspace), SITE, 1)
    return SiteTrainer(settings, site, SITE, SITES.index(SITE), SITES, "0123456789ab")


def furthest(a: dict, b: dict) -> float:
    """The largest difference of a weight: tensors by track, as a site sends them."""
    return max((v - b[name][key]).abs().max().item() for name, group in a.items() for key, v in group.items())


def meta_of(settings, number: int) -> dict:
    """What the server sends beside the models."""
    return {"round": number, "run_id": "0123456789ab", "sites": SITES, "settings": settings.to_dict(), "tracks": None}


def payload_of(settings, number: int) -> dict:
    """Models as the server might send them in a round: others in each."""
    payload = {name: track.payload(TRAIN, SITE) for name, track in server_tracks(settings, SITES).items()}
    payload = copy.deepcopy({name: tensors for name, tensors in payload.items() if tensors})
    generator = torch.Generator().manual_seed(number)
    for tensors in payload.values():
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor += 0.01 * torch.randn(tensor.shape, generator=generator)
    return payload


@contextmanager
def link_to(place: SiteLocation, command: tuple[str, ...] = COMMAND) -> Iterator[TrainerLink]:
    """A link whose process is gone afterwards."""
    link = TrainerLink(place, command)
    try:
        yield link
    finally:
        link.close()


def faulty(fault: str, mark: Path) -> tuple[str, ...]:
    """The command of a trainer that touches `mark` at the first batch of round 2 and waits there, or faults."""
    return (sys.executable, "-m", "tests.helpers.faulty_trainer", fault, str(mark))


def when_it_trains(mark: Path, action: Callable[[], None]) -> threading.Thread:
    """Does something once `mark` is there."""

    def wait():
        while not mark.exists():
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
