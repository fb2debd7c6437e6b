"""FedBN on numbers small enough to do by hand."""

import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.fedbn import FedBNClient, norm_entries
from tests.helpers.plain_shared_methods import Line, batch, one, tiny
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import noise, train

CPU = torch.device("cpu")


class Shift(nn.LayerNorm):
    """A norm layer that does not normalise: weight * x + bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x + self.bias


class Normed(Line):
    """weight * (w x) + bias, the outer two in a norm layer."""

    def __init__(self):
        super().__init__()
        self.layer = Shift(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(super().forward(x))


def test_a_round_by_hand():
    """w = 2 comes down, the site's norm layer is 1 * x + 0; x = 1, y = 0: the gradients of w, weight and bias are
    positive, and Adam's first step takes lr = 0.1 off each: 1.9, 0.9, -0.1. Only w - 2 = -0.1 goes up.

    Then w = 5 comes down: the network is 0.9 * 5 - 0.1 = 4.4, the norm layer being the site's own.
    """
    track = tiny(FedBNClient, net=Normed)
    track.receive(TRAIN, one(2.0))
    track.begin(1)
    track.step(*batch(1.0))
    update = track.send(TRAIN)
    assert set(update) == {"w"}
    assert update["w"].item() == pytest.approx(-0.1, abs=1e-6)
    track.receive(TRAIN, one(5.0))
    assert track.net(batch(1.0)[0]).item() == pytest.approx(4.4, abs=1e-5)
    assert set(track.send(DELIVER)) == {"w", "layer.weight", "layer.bias"}


def test_the_last_model_competes_and_the_best_is_scored_and_delivered():
    """One pixel that is foreground: w = 1 finds it (Dice 1), w = -1 does not (Dice 0)."""
    truth = [batch(1.0, 1.0)]
    for received, score, best in (((1.0, -1.0), 1.0, 1.0), ((-1.0, 1.0), 1.0, 1.0), ((-1.0, -2.0), 0.0, -1.0)):
        track = tiny(FedBNClient, net=Normed)
        track.receive(TRAIN, one(received[0]))
        assert track.validate(TRAIN, truth)["score"] == float(received[0] > 0)
        track.begin(1)
        track.receive(DELIVER, one(received[1]))
        assert track.validate(DELIVER, truth) == {"score": score, "images": 1}
        first = initial_weights(track.build, track.settings.seed)
        assert track.send(DELIVER)["w"].item() + first["w"].item() == pytest.approx(best)


@pytest.mark.parametrize(
    ("norm", "entries"),
    [
        (nn.BatchNorm2d(2), {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}),
        (nn.InstanceNorm2d(2, affine=True), {"weight", "bias"}),
        (nn.InstanceNorm2d(2), set()),
        (nn.GroupNorm(1, 2), {"weight", "bias"}),
        (nn.LayerNorm(2), {"weight", "bias"}),
        (nn.RMSNorm(2), {"weight"}),
    ],
)
def test_norm_layers_are_found_by_their_type(norm, entries):
    """Names say nothing: a convolution called `norm` is none."""
    net = nn.ModuleDict({"norm": nn.Conv2d(1, 2, 1), "a": nn.Sequential(nn.Conv2d(1, 2, 1), norm)})
    assert norm_entries(net) == {f"a.1.{key}" for key in entries}
    assert norm_entries(norm) == entries


PAIR = ("personal", "global")


def settings_with(norm: str):
    return small_settings(overrides=["tracks.personal={kind: fedbn}", f"task.unet.norm={norm}"])


@pytest.mark.parametrize("norm", ["[INSTANCE, {affine: true}]", "BATCH", "[GROUP, {num_groups: 2}]"])
def test_wire_is_the_network_without_its_norm_layers(norm):
    settings = settings_with(norm)
    server = server_tracks(settings, SITES)["personal"]
    track = client_tracks(settings, SiteContext(0, 3, CPU))["personal"]
    whole = dict(track.net.state_dict())
    norms = {
        f"{name}.{key}"
        for name, module in track.net.named_modules()
        if "Norm" in type(module).__name__
        for key in module.state_dict()
    }
    assert norms and norms < set(whole)
    body = payload_bytes({"p": {k: v for k, v in whole.items() if k not in norms}})
    update = train(track, server.payload(TRAIN, SITES[0]), noise(3))
    for tensors in (server.payload(TRAIN, SITES[0]), server.payload(DELIVER, SITES[0]), server.expects(TRAIN), update):
        assert set(tensors) == set(whole) - norms
        assert payload_bytes({"p": tensors}) == body
    assert set(track.send(DELIVER)) == set(server.expects(DELIVER)) == set(whole)


def test_averaged_by_images():
    """w = 1; 10 images say +1, 30 say -1: w <- 1 + (10 - 30) / 40 = 0.5."""
    track = server_tracks(settings_with("BATCH"), SITES)["personal"]
    track.load_files({"personal": one(1.0)})
    track.accept(TRAIN, SITES[0], one(1.0), 10)
    track.accept(TRAIN, SITES[1], one(-1.0), 30)
    track.close(TRAIN)
    assert track.weights["w"].item() == 0.5


@pytest.mark.parametrize("norm", ["null", "[INSTANCE, {affine: false}]"])
def test_without_norm_entries_it_is_fedavg(norm):
    """Two rounds of one site, to the bit."""
    settings = settings_with(norm)
    servers, clients = server_tracks(settings, SITES), client_tracks(settings, SiteContext(0, 3, CPU))
    for number in range(2):
        updates = {
            name: train(clients[name], servers[name].payload(TRAIN, SITES[0]), noise(3, number)) for name in PAIR
        }
        for name, update in updates.items():
            servers[name].accept(TRAIN, SITES[0], update, 6)
            servers[name].close(TRAIN)
    ours, theirs = (servers[name].weights for name in PAIR)
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_norm_layers_and_moments_survive_a_restart():
    settings = settings_with("BATCH")
    down = server_tracks(settings, SITES)["personal"].payload(TRAIN, SITES[0])
    straight, restarted = (client_tracks(settings, SiteContext(0, 3, CPU))["personal"] for _ in range(2))
    train(straight, down, noise(3))
    restarted.load_state({k: v.clone() for k, v in straight.state().items()})
    a, b = (train(t, down, noise(3, seed=1)) for t in (straight, restarted))
    assert all(torch.equal(a[k], b[k]) for k in a)
    a, b = straight.state(), restarted.state()
    assert set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)
    counters = {v.item() for k, v in a.items() if k.startswith("net/") and k.endswith("num_batches_tracked")}
    assert counters == {6}, "two rounds of three batches, counted at the site"


def test_options_are_refused_in_one_line():
    with pytest.raises(UserError, match="track 'personal': unknown setting 'lam'"):
        server_tracks(small_settings(overrides=["tracks.personal={kind: fedbn, lam: 0.5}"]), SITES)
