"""FedRep on numbers small enough to do by hand."""

import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.nets import build_unet
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.fedrep import HEAD, FedRepClient
from tests.helpers.plain_shared_methods import Line, batch, tiny
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import noise, refusal, same

CPU = torch.device("cpu")
BODY, OWN = "model.0.w", "model.2.w"


class BodyAndHead(nn.Module):
    """f(x) = h (phi x), with the places of a U-Net: phi is in `model.0`, h in `model.2`. Both start as 1."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(Line(), nn.Identity(), Line())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def site(head_steps: int) -> FedRepClient:
    """A site with that network, the loss (f - y)^2 / 2 and plain steps of 0.1."""
    client = tiny(FedRepClient, net=BodyAndHead, head_steps=head_steps)
    client.learner.optimizer = torch.optim.SGD(client.net.parameters(), lr=0.1)
    return client


def weights(client: FedRepClient) -> tuple[float, float]:
    state = client.net.state_dict()
    return state[BODY].item(), state[OWN].item()


def play(client: FedRepClient, phi: float) -> dict:
    """A round with one image, x = 1 and y = 0."""
    client.receive(TRAIN, {BODY: torch.tensor([phi])})
    client.begin(1, iter([batch(1.0)]))  # it can be walked once, as that of a real site
    client.step(*batch(1.0))
    return client.send(TRAIN)


def test_two_rounds_by_hand():
    """x = 1, y = 0, eta = 0.1: the gradient of h is (h phi) phi, that of phi is (h phi) h.

    round 1, phi = 2, h = 1:        head  h   = 1 - 0.1 * 1 * 4           = 0.6
                                    body  phi = 2 - 0.1 * 2 * 0.36        = 1.928      up: -0.072
    round 2, phi = 1, h = 0.6:      head  h   = 0.6 - 0.1 * 0.6 * 1       = 0.54
                                    body  phi = 1 - 0.1 * 1 * 0.2916      = 0.97084    up: -0.02916

    Both at once would give phi = 2 - 0.1 * 2 * 1 = 1.8 in round 1, body first h = 1 - 0.1 * 1.8^2 = 0.676.
    """
    client = site(head_steps=1)
    for phi, h, change in ((2.0, 0.6, -0.072), (1.0, 0.54, -0.02916)):
        update = play(client, phi)
        assert set(update) == {BODY}, "the head stays"
        assert update[BODY].item() == pytest.approx(change, abs=1e-6)
        assert weights(client) == pytest.approx((phi + change, h), abs=1e-6)
    assert set(client.send(DELIVER)) == {BODY, OWN}


def test_head_steps_are_steps_on_each_batch():
    """phi = 2: each of two steps takes 0.4 h off h: 0.6, then 0.36."""
    client = site(head_steps=2)
    play(client, 2.0)
    assert weights(client)[1] == pytest.approx(0.36, abs=1e-6)


def test_the_loss_that_is_reported_is_that_of_the_body_s_pass():
    """After the head's step h = 0.6, phi = 2: (1.2)^2 / 2 = 0.72."""
    client = site(head_steps=1)
    client.receive(TRAIN, {BODY: torch.tensor([2.0])})
    client.begin(1, [batch(1.0)])
    assert client.step(*batch(1.0)) == pytest.approx(0.72, abs=1e-6)


def settings_with(*overrides: str, steps: int = 1):
    return small_settings(overrides=[f"tracks.personal={{kind: fedrep, head_steps: {steps}}}", *overrides])


def train(track, down: dict, batches: list) -> dict:
    """A round as a site plays it, with a walk over the training images before the pass."""
    track.receive(TRAIN, {k: v.clone() for k, v in down.items()})
    track.validate(TRAIN, batches)
    track.begin(sum(len(x) for x, _ in batches), iter(batches))
    for x, y in batches:
        track.step(x, y)
    return track.send(TRAIN)


@pytest.mark.parametrize("units", [0, 1, 2])
@pytest.mark.parametrize(("channels", "features"), [("[4,8]", 4 + 8), ("[4,8,16]", 4 + 4), ("[4,8,16,32]", 4 + 4)])
def test_the_head_is_the_block_that_makes_the_labels_maps(units, channels, features):
    """`model.2` turns the last feature maps, at half the resolution, into the output of the network."""
    task = settings_with(f"task.unet.residual_units={units}", f"task.unet.channels={channels}").task
    net = build_unet(task).eval()
    seen = []
    net.get_submodule(HEAD.rstrip(".")).register_forward_hook(lambda _, given, out: seen.append((given[0], out)))
    output = net(torch.rand(1, 3, 32, 32))
    ((given, made),) = seen
    assert given.shape == (1, features, 16, 16) and torch.equal(made, output)


def test_wire_is_the_network_without_its_head():
    settings = settings_with()
    server = server_tracks(settings, SITES)["personal"]
    track = client_tracks(settings, SiteContext(0, 3, CPU))["personal"]
    whole = dict(track.net.state_dict())
    body = {k: v for k, v in whole.items() if not k.startswith("model.2.")}
    assert 0 < len(body) < len(whole)
    update = train(track, server.payload(TRAIN, SITES[0]), noise(3))
    for tensors in (server.payload(TRAIN, SITES[0]), server.payload(DELIVER, SITES[0]), server.expects(TRAIN), update):
        assert payload_bytes({"p": tensors}) == payload_bytes({"p": body}) and set(tensors) == set(body)
    assert set(track.send(DELIVER)) == set(server.expects(DELIVER)) == set(whole)


def test_bytes_of_the_default_network_are_those_of_the_docstring():
    server = server_tracks(small_settings(overrides=[
        "tracks.personal={kind: fedrep}", "task.unet.channels=[16,32,64,128,256]", "task.unet.residual_units=2",
    ]), SITES)["personal"]  # fmt: skip
    assert payload_bytes({"p": server.payload(TRAIN, SITES[0])}) == 6_503_360
    assert payload_bytes({"p": server.expects(DELIVER)}) == 6_505_828


def test_bodies_are_averaged_by_images_over_those_who_answered():
    """phi = 1; 10 images say +1, 30 say -1, the third site says nothing: phi <- 1 + (10 - 30) / 40 = 0.5."""
    track = server_tracks(settings_with(), SITES)["personal"]
    track.load_files({"personal": {BODY: torch.tensor([1.0])}})
    track.accept(TRAIN, SITES[0], {BODY: torch.tensor([1.0])}, 10)
    track.accept(TRAIN, SITES[1], {BODY: torch.tensor([-1.0])}, 30)
    track.close(TRAIN)
    assert track.weights[BODY].item() == 0.5


def test_without_head_steps_heads_stay_as_the_seed_made_them():
    """And in the first round, all else being equal, the body learns as FedAvg's does: to the bit."""
    settings = settings_with(steps=0)
    servers, clients = server_tracks(settings, SITES), client_tracks(settings, SiteContext(0, 3, CPU))
    for track in clients.values():
        track.load_state({})
    first = {k: v.clone() for k, v in clients["personal"].net.state_dict().items()}
    batches = noise(1)
    ours, theirs = (train(clients[n], servers[n].payload(TRAIN, SITES[0]), batches) for n in ("personal", "global"))
    assert same(ours, {k: theirs[k] for k in ours})
    now = clients["personal"].net.state_dict()
    assert all(torch.equal(now[k], first[k]) is k.startswith(HEAD) for k in now)


def test_a_site_that_took_part_in_no_round_delivers_nothing():
    """Its head is that of the seed: the global model stands in for it."""
    settings = settings_with()
    track = client_tracks(settings, SiteContext(0, 3, CPU))["personal"]
    track.load_state({})
    track.receive(DELIVER, server_tracks(settings, SITES)["personal"].payload(DELIVER, SITES[0]))
    with pytest.raises(UserError, match="no personal network"):
        track.validate(DELIVER, noise(1))


def test_heads_and_moments_survive_a_restart():
    settings = settings_with()
    down = server_tracks(settings, SITES)["personal"].payload(TRAIN, SITES[0])
    straight, restarted = (client_tracks(settings, SiteContext(0, 3, CPU))["personal"] for _ in range(2))
    train(straight, down, noise(3))
    restarted.load_state({k: v.clone() for k, v in straight.state().items()})
    a, b = (train(t, down, noise(3, seed=1)) for t in (straight, restarted))
    assert same(a, b) and same(straight.state(), restarted.state())


@pytest.mark.parametrize("steps", ["-1", "0.5", "many"])
def test_bad_options_are_refused_in_one_line(steps):
    reason = refusal(f"{{global: {{kind: fedavg}}, personal: {{kind: fedrep, head_steps: {steps}}}}}")
    assert reason.startswith("track 'personal': head_steps must be") and "\n" not in reason
