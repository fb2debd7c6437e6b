"""A site small enough for tests of a track: a line with one weight, or the small U-Nets on random images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fedsm.client.local_state import LocalState
from fedsm.core.errors import UserError
from fedsm.core.tensors import Tensors
from fedsm.nets import build_unet
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks import check_tracks, client_tracks
from fedsm.tracks.base import TRAIN, ClientTrack, SiteContext
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


class Line(nn.Module):
    """f(x) = w x."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


def line(kind: type[SegmentationClient], w: float = 0.0, net: type[nn.Module] = Line, **options):
    """A client whose network is a line, with the loss (w x - y)^2 / 2 and plain steps w <- w - 0.1 gradient."""

    class Small(kind):
        def build(self) -> nn.Module:
            return net()

    client = Small(small_settings(), options, SiteContext(0, 2, CPU))
    client.segmentation_loss = lambda prediction, truth: ((prediction - truth) ** 2).mean() / 2
    client.net.w.data.fill_(w)
    client._fresh = False  # a site with a past
    client.learner.optimizer = torch.optim.SGD(client.learner.optimizer.param_groups[0]["params"], lr=0.1)
    return client


def step(client: ClientTrack, y: float) -> float:
    """Steps on x = 1: the gradient of the loss is w - y. Returns w."""
    client.step(torch.ones(1, 1), torch.full((1, 1), y))
    return round(client.net.w.item(), 6)


def settings_of(tracks: str):
    """Small settings with these tracks, in YAML."""
    return small_settings(overrides=[f"tracks={tracks}"])


def beside_global(personal: str) -> str:
    """The tracks of a personal kind beside FedAvg."""
    return f"{{global: {{kind: fedavg}}, personal: {personal}}}"


def make_site(tracks: str) -> dict[str, ClientTrack]:
    """A site's tracks, as before round 1."""
    made = client_tracks(settings_of(tracks), SiteContext(0, 2, CPU))
    for track in made.values():
        track.load_state({})
    return made


def global_model(seed: int) -> Tensors:
    """Some global model."""
    return initial_weights(lambda: build_unet(small_settings().task), seed)


def play_round(tracks: dict[str, ClientTrack], number: int) -> None:
    """A round as the site trainer plays it: a global model (in round 1 that of the seed), a score, three batches."""
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(6, 3, 32, 32, generator=generator)
    labels = (torch.rand(6, 2, 32, 32, generator=generator) > 0.5).float()
    for name, track in tracks.items():
        track.receive(TRAIN, global_model(number - 1) if name == "global" else {})
    for track in tracks.values():
        track.validate(TRAIN, [(images, labels)])
    for track in tracks.values():
        track.begin(6)
    for rows in torch.arange(6).split(2):
        for track in tracks.values():
            track.step(images[rows], labels[rows])


def same(a: Tensors, b: Tensors) -> bool:
    """Whether two state dicts are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def continues_after_restart(folder: Path, tracks: str) -> bool:
    """Whether a site that was restarted after round 1, and read its state from disk, ends as one that was not."""
    straight, first, second = make_site(tracks), make_site(tracks), make_site(tracks)
    play_round(straight, 1)
    play_round(first, 1)
    disk = LocalState(folder, "0123456789ab")
    disk.save(1, {name: track.state() for name, track in first.items()})
    number, state = disk.load(before=2)
    assert number == 1
    for name, track in second.items():
        track.load_state(state[name])
    for site in (straight, second):
        play_round(site, 2)
    return all(same(straight[name].state(), second[name].state()) for name in straight)


def refusal(tracks: str) -> str:
    """Why a job with these tracks is refused; empty if it is not."""
    try:
        check_tracks(settings_of(tracks), SITES)
    except UserError as e:
        return str(e)
    return ""


def noise(count: int, seed: int = 0) -> list:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(2, 3, 32, 32, generator=generator), (torch.rand(2, 2, 32, 32, generator=generator) > 0.5).float())
        for _ in range(count)
    ]


def train(track, down: dict, batches: list) -> dict:
    track.receive(TRAIN, {k: v.clone() for k, v in down.items()})
    track.validate(TRAIN, batches)
    track.begin(sum(len(x) for x, _ in batches))
    for x, y in batches:
        track.step(x, y)
    return track.send(TRAIN)
