"""A run of tracks without FLARE, files or networks between: what the contract test plays with every kind."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks import KINDS, client_tracks, playing, server_tracks
from fedsm.tracks.base import DELIVER, REGISTER, TRAIN, Membership, Phase, ServerTrack, SiteContext
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")
ROUNDS = 3


def job_with(kind: str) -> JobSettings:
    """The smallest job in which a kind can be trained: with a U-Net of two levels."""
    track = KINDS[kind].track
    own = {"kind": kind} | ({"rounds": 1} if kind == "selector_extra" else {})
    tracks = {"global": {"kind": "fedavg"}, "personal": {"kind": "softpull", "lam": 0.7}} | {track: own}
    wanted = {
        "global": ("global",),
        "personal": ("personal",) if kind == "local" else ("global", "personal"),
        "selector": ("global", "personal", "selector"),
    }[track]
    spec = {name: tracks[name] for name in wanted}
    unet = ["task.unet.channels=[4,8]", "task.unet.residual_units=0"]
    return small_settings(rounds=ROUNDS, overrides=[f"tracks={spec}", *unet])


def with_and_without_restarts(make: Callable[[], TrackRun]) -> list[dict[str, Tensors]]:
    """The checkpoints of two equal runs, one with new processes at all sites and at the server after every round."""
    straight, restarted = make(), make()
    for _ in range(2):
        straight.play_round()
        restarted.play_round()
        restarted.restart_sites()
        restarted.restart_server()
    return [straight.run().files(), restarted.run().files()]


def images_of(index: int) -> Batch:
    """Four images of a site, with labels."""
    generator = torch.Generator().manual_seed(index)
    images = torch.rand(4, 3, 32, 32, generator=generator) * (0.4 + 0.15 * index)
    return images, (images[:, :2] > images[:, :2].mean()).float()


class TrackRun:
    """Sites and a server that hand tensors to each other.

    Args:
        settings: the job's settings.
        sites: the sites' names.
        servers: the server halves, if there are any yet.
    """

    def __init__(self, settings: JobSettings, sites: list[str] = SITES, servers: dict[str, ServerTrack] | None = None):
        self.settings, self.sites = settings, list(sites)
        self.servers = servers or server_tracks(settings, self.sites)
        self.clients = {site: self._new_client(site) for site in self.sites}
        self.round = 0

    def _new_client(self, site: str) -> dict:
        tracks = client_tracks(self.settings, SiteContext(self.sites.index(site), len(self.sites), CPU))
        for track in tracks.values():
            track.load_state({})
        return tracks

    def register(self, sites: list[str] | None = None) -> None:
        """Every site registers."""
        for site in sites or self.sites:
            self._send(REGISTER, site, list(self.servers))
        for track in self.servers.values():
            track.close(REGISTER)

    def play_round(self, answering: list[str] | None = None) -> None:
        """One round, in which these sites answer."""
        self.round += 1
        names, before = playing(self.servers, self.round), playing(self.servers, self.round - 1)
        if self.round > 1 and names != before:
            self.deliver(before)
        for name in names:
            self.servers[name].open(self.round, self.best_models)
        payloads = {site: self._payload(TRAIN, site, names) for site in self.sites}
        for site in answering or self.sites:
            tracks, (images, labels) = self.clients[site], images_of(self.sites.index(site))
            self._receive(TRAIN, site, payloads[site])
            for name in names:
                tracks[name].begin(4, [(images, labels)])
            torch.manual_seed(self.round)
            for rows in torch.arange(4).split(2):
                for name in names:
                    tracks[name].step(images[rows], labels[rows], rows)
            self._send(TRAIN, site, names)
        for name in names:
            self.servers[name].close(TRAIN)

    def deliver(self, names: list[str]) -> None:
        """The end of these tracks' training."""
        reports = {}
        payloads = {site: self._payload(DELIVER, site, names) for site in self.sites}
        for site in self.sites:
            reports[site] = self._receive(DELIVER, site, payloads[site])
            self._send(DELIVER, site, names)
        for name in names:
            self.servers[name].close(DELIVER, {s: r[name] for s, r in reports.items() if r[name]})

    def run(self) -> TrackRun:
        """All rounds that are left, and the end."""
        while self.round < self.settings.rounds:
            self.play_round()
        self.deliver(playing(self.servers, self.settings.rounds))
        return self

    def best_models(self) -> dict[str, Tensors]:
        """The networks that are at the server, and the global one where a site's own is not."""
        files = {stem: tensors for track in self.servers.values() for stem, tensors in track.files().items()}
        return {"global": files["global"]} | {
            f"personal.{s}": files.get(f"personal.{s}", files["global"]) for s in self.sites
        }

    def restart_sites(self) -> None:
        """New processes at all sites, which read their state from disk."""
        for site, tracks in self.clients.items():
            state = {name: copy.deepcopy(track.state()) for name, track in tracks.items()}
            self.clients[site] = self._new_client(site)
            for name, track in self.clients[site].items():
                track.load_state(state[name])

    def files(self) -> dict[str, Tensors]:
        """What a checkpoint would hold."""
        return {stem: copy.deepcopy(t) for track in self.servers.values() for stem, t in track.files().items()}

    def restart_server(self) -> None:
        """A new server goes on from the checkpoint."""
        files = self.files()
        self.servers = server_tracks(self.settings, self.sites)
        for track in self.servers.values():
            track.load_files(files)

    def with_sites(self, sites: list[str]) -> TrackRun:
        """The run as it goes on with other sites, from the checkpoint; those that stay keep their state."""
        files = self.files()
        for site in [s for s in self.sites if s not in sites]:
            for track in self.servers.values():
                if isinstance(track, Membership):
                    track.leave(files, site)
        servers = server_tracks(self.settings, sites)
        new = [site for site in sites if site not in self.sites]
        for track in servers.values():
            if new and isinstance(track, Membership):
                track.join(files, new)
        for track in servers.values():
            track.load_files(files)
        later = TrackRun(self.settings, sites, servers)
        later.round = self.round
        for site in sites:
            for name, track in later.clients[site].items():
                track.load_state(copy.deepcopy(self.clients[site][name].state()) if site not in new else {})
        later.register(new) if new else None
        return later

    def _payload(self, phase: Phase, site: str, names: list[str]) -> dict[str, Tensors]:
        return {name: copy.deepcopy(self.servers[name].payload(phase, site)) for name in names}

    def _receive(self, phase: Phase, site: str, payload: dict[str, Tensors]) -> dict[str, dict]:
        for name, tensors in payload.items():
            self.clients[site][name].receive(phase, tensors)
        batch = images_of(self.sites.index(site))
        return {name: self.clients[site][name].validate(phase, [batch]) for name in payload}

    def _send(self, phase: Phase, site: str, names: list[str]) -> None:
        for name in names:
            sent = self.clients[site][name].send(phase, [images_of(self.sites.index(site))])
            self.check_declared(phase, name, sent)
            if sent:
                self.servers[name].accept(phase, site, copy.deepcopy(sent), 4)

    def check_declared(self, phase: Phase, name: str, sent: Tensors) -> None:
        """What is sent is what the server expects, entry by entry."""
        expected = self.servers[name].expects(phase)
        assert sent.keys() == expected.keys(), (phase, name)
        for key, value in expected.items():
            assert (sent[key].shape, sent[key].dtype) == (value.shape, value.dtype), (phase, name, key)
        images = {"train": 4, "validation": 4, "test": 4}
        assert self.servers[name].problem(phase, sent, images, {}) is None
