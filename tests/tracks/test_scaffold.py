"""SCAFFOLD on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.scaffold import ScaffoldClient
from tests.helpers.plain_shared_methods import batch, one, tiny
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


def payload(w: float, c: float) -> dict:
    return one(w) | {f"control/{k}": v for k, v in one(c).items()}


def files(w: float, c: float, *images: float) -> dict:
    """A checkpoint of the server."""
    return {"global": one(w), "global.controls": one(c), "global.images": {"images": torch.tensor(images)}}


def test_two_local_steps_by_hand():
    """SGD, lr 0.1, w = 1, c = 0.5, c_k = 0.2; twice x = 1, y = 0, so the gradient is y_k itself.

    y = 1    - 0.1 (1    + 0.5 - 0.2) = 0.87
    y = 0.87 - 0.1 (0.87 + 0.5 - 0.2) = 0.753           up: y - w = -0.247
    c_k+ = 0.2 - 0.5 + (1 - 0.753) / (2 * 0.1) = 0.935  up: c_k+ - c_k = 0.735
    0.935 = (1 + 0.87) / 2 is the mean of the two gradients.
    """
    track = tiny(ScaffoldClient, optimizer="sgd")
    track.load_state({"control/w": torch.tensor([0.2])})
    track.receive(TRAIN, payload(1.0, 0.5))
    track.begin(2)
    for _ in range(2):
        track.step(*batch(1.0))
    update = track.send(TRAIN)
    assert set(update) == {"w", "control/w"}
    assert update["w"].item() == pytest.approx(-0.247, abs=1e-6)
    assert update["control/w"].item() == pytest.approx(0.735, abs=1e-5)
    assert track.state()["control/w"].item() == pytest.approx(0.935, abs=1e-5)


def test_with_adam_the_correction_comes_behind_it():
    """Adam's first step is lr * sign(gradient): y = 1 - 0.1 (1 + 0.5 - 0.2) = 0.87, whatever the gradient's size.

    c_k+ = 0.2 - 0.5 + (1 - 0.87) / 0.1 = 1: the mean step of Adam in units of lr.
    """
    for size in (1.0, 0.01):
        track = tiny(ScaffoldClient, optimizer="adam")
        track.load_state({"control/w": torch.tensor([0.2])})
        track.receive(TRAIN, payload(1.0, 0.5))
        track.begin(1)
        track.step(*batch(size))
        update = track.send(TRAIN)
        assert update["w"].item() == pytest.approx(-0.13, abs=1e-5)
        assert update["control/w"].item() == pytest.approx(0.8, abs=1e-4)


def test_server_by_hand():
    """w = 1, c = 0.5; two of three sites answer: 10 images, +1, dc = 3, and 30 images, -1, dc = 6; the third has 20.

    w <- 1 + (10 * 1 + 30 * -1) / 40 = 0.5       over those that answered
    c <- 0.5 + (10 * 3 + 30 * 6) / 60 = 4        over all three
    """
    track = server_tracks(small_settings(method="scaffold"), SITES)["global"]
    track.load_files(files(1.0, 0.5, 10, 30, 20))
    track.accept(TRAIN, SITES[0], payload(1.0, 3.0), 10)
    track.accept(TRAIN, SITES[1], payload(-1.0, 6.0), 30)
    track.close(TRAIN)
    assert track.weights["w"].item() == 0.5
    assert track.controls["w"].item() == 4
    assert {k: v.item() for k, v in track.payload(TRAIN, SITES[0]).items()} == {"w": 0.5, "control/w": 4}
    assert set(track.payload(DELIVER, SITES[0])) == {"w"}
    track.close(TRAIN)
    assert (track.weights["w"].item(), track.controls["w"].item()) == (0.5, 4), "no answer changes nothing"
    assert track.models() == {"global": SITES}
    assert set(track.files()) == {"global", "global.controls", "global.images"}


def test_a_site_that_has_not_answered_yet_has_no_share_of_c():
    """Round 1 without the third: c = (10 * 3 + 30 * 6) / 40 = 5.25. Then the third alone, 20 images, dc = 9:

    c <- (40 * 5.25 + 20 * 9) / 60 = 6.5, the mean of 3, 6 and 9 by images.
    """
    track = server_tracks(small_settings(method="scaffold"), SITES)["global"]
    track.load_files(files(0.0, 0.0, 0, 0, 0))
    track.accept(TRAIN, SITES[0], payload(0.0, 3.0), 10)
    track.accept(TRAIN, SITES[1], payload(0.0, 6.0), 30)
    track.close(TRAIN)
    assert track.controls["w"].item() == 5.25
    track.accept(TRAIN, SITES[2], payload(0.0, 9.0), 20)
    track.close(TRAIN)
    assert track.controls["w"].item() == pytest.approx(6.5)


def test_unequal_sites_end_where_fedavg_would():
    """Sites that want 0 (10 images) and 1 (30 images), loss (w - y)^2 / 2: 30 / 40 = 0.75 is best for all images.

    A control that weighs the sites equally would make it 0.5.
    """
    server = server_tracks(small_settings(method="scaffold"), SITES[:2])["global"]
    server.load_files(files(0.0, 0.0, 0, 0))
    sites = {site: tiny(ScaffoldClient, optimizer="sgd") for site in SITES[:2]}
    for _ in range(60):
        for (site, track), wants, images in zip(sites.items(), (0.0, 1.0), (10, 30), strict=True):
            track.receive(TRAIN, {k: v.clone() for k, v in server.payload(TRAIN, site).items()})
            track.begin(5)
            for _ in range(5):
                track.step(*batch(1.0, wants))
            server.accept(TRAIN, site, track.send(TRAIN), images)
        server.close(TRAIN)
    assert server.weights["w"].item() == pytest.approx(0.75, abs=1e-4)


def train(track, down: dict, seed: int = 0) -> dict:
    """Two batches of noise."""
    generator = torch.Generator().manual_seed(seed)
    track.receive(TRAIN, {k: v.clone() for k, v in down.items()})
    track.begin(4)
    for _ in range(2):
        images = torch.rand(2, 3, 32, 32, generator=generator)
        track.step(images, (torch.rand(2, 2, 32, 32, generator=generator) > 0.5).float())
    return track.send(TRAIN)


def clients(count: int, **given) -> list:
    return [client_tracks(small_settings(**given), SiteContext(0, 3, CPU))["global"] for _ in range(count)]


def test_round_1_is_fedavg_to_the_bit():
    server = server_tracks(small_settings(method="scaffold"), SITES)["global"]
    plain = server_tracks(small_settings(method="fedavg"), SITES)["global"]
    (track,), (other,) = clients(1, method="scaffold"), clients(1, method="fedavg")
    ours, theirs = train(track, server.payload(TRAIN, SITES[0])), train(other, plain.payload(TRAIN, SITES[0]))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    server.accept(TRAIN, SITES[0], ours, 4)
    plain.accept(TRAIN, SITES[0], theirs, 4)
    server.close(TRAIN)
    plain.close(TRAIN)
    assert all(torch.equal(server.weights[k], plain.weights[k]) for k in plain.weights)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_controls_and_moments_survive_a_restart(optimizer):
    given = {"method": "scaffold", "overrides": [f"tracks.global.optimizer={optimizer}"]}
    server = server_tracks(small_settings(**given), SITES)["global"]
    straight, restarted = clients(2, **given)
    down = server.payload(TRAIN, SITES[0])
    train(straight, down)
    restarted.load_state({k: v.clone() for k, v in straight.state().items()})
    a, b = train(straight, down, seed=1), train(restarted, down, seed=1)
    assert all(torch.equal(a[k], b[k]) for k in a)
    (fresh,) = clients(1, **given)
    c = train(fresh, down, seed=1)
    assert any(not torch.equal(a[k], c[k]) for k in a), "the state matters"
    restarted.load_state({})
    assert all((v == 0).all() for k, v in restarted.state().items() if k.startswith("control/"))


def test_server_goes_on_from_its_files():
    settings = small_settings(method="scaffold")
    first, second = (server_tracks(settings, SITES)["global"] for _ in range(2))
    (track,) = clients(1, method="scaffold")
    update = train(track, first.payload(TRAIN, SITES[0]))
    first.accept(TRAIN, SITES[0], update, 4)
    first.close(TRAIN)
    second.load_files(first.files())
    assert all(torch.equal(v, first.payload(TRAIN, "")[k]) for k, v in second.payload(TRAIN, "").items())


def test_wire_is_two_networks_each_way_and_integers_have_no_control():
    overrides = ["task.unet.norm=BATCH"]
    given = {"method": "scaffold", "overrides": overrides}
    server = server_tracks(small_settings(**given), SITES)["global"]
    (track,) = clients(1, **given)
    update = train(track, server.payload(TRAIN, SITES[0]))
    assert set(update) == set(server.expects(TRAIN))
    counters = [k for k in server.weights if k.endswith("num_batches_tracked")]
    assert counters and all(update[k].item() == 2 for k in counters)
    parameters = dict(track.net.named_parameters())
    assert {k for k in update if k.startswith("control/")} == {f"control/{k}" for k in parameters}

    plain = server_tracks(small_settings(method="scaffold"), SITES)["global"]
    model = payload_bytes({"global": plain.weights})
    assert payload_bytes({"global": plain.payload(TRAIN, SITES[0])}) == 2 * model
    assert payload_bytes({"global": plain.expects(TRAIN)}) == 2 * model


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tracks.global.optimizer=lion", "optimizer must be adam or sgd, got 'lion'"),
        ("tracks.global.mu=1", "unknown setting 'mu'; known: optimizer"),
    ],
)
def test_bad_options_are_refused_in_one_line(override, words):
    with pytest.raises(UserError, match="global") as error:
        server_tracks(small_settings(method="scaffold", overrides=[override]), SITES)
    assert words in str(error.value) and "\n" not in str(error.value)
