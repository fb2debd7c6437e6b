"""pFedMe on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.pfedme import PFedMeClient
from tests.helpers.plain_shared_methods import batch, one, tiny
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import noise, train

CPU = torch.device("cpu")
BY_HAND = {"prox": 2.0, "inner_steps": 2, "inner_lr": 0.5, "outer_lr": 0.25, "beta": 1}


def test_a_batch_by_hand():
    """w = 1, x = 1, y = 0, so grad f = theta; inner_lr 0.5 and prox 2 make the divisor 1 + 0.5 * 2 = 2.

    theta <- 1 + (1    - 1 - 0.5 * 1)    / 2 = 0.75
    theta <- 1 + (0.75 - 1 - 0.5 * 0.75) / 2 = 0.6875        (its limit: prox / (1 + prox) = 2 / 3)
    w     <- 1 - 0.25 * 2 * (1 - 0.6875)     = 0.84375
    """
    track = tiny(PFedMeClient, **BY_HAND)
    track.receive(TRAIN, one(1.0))
    track.begin(1)
    track.step(*batch(1.0))
    assert track.net.w.item() == pytest.approx(0.6875)
    assert track.send(TRAIN)["w"].item() == pytest.approx(0.84375 - 1)


def test_the_next_batch_goes_on_from_theta_and_the_next_round_from_w():
    """w = 0.84375, theta = 0.6875 by now; one step: 0.84375 + (0.6875 - 0.84375 - 0.34375) / 2 = 0.59375."""
    track = tiny(PFedMeClient, **(BY_HAND | {"inner_steps": 1}))
    track.receive(TRAIN, one(0.84375))
    track.begin(2)
    with torch.no_grad():
        track.net.w.fill_(0.6875)
    track.step(*batch(1.0))
    assert track.net.w.item() == pytest.approx(0.59375)
    track.begin(2)
    assert track.net.w.item() == track.shared.w.item()


def test_many_inner_steps_reach_the_envelope():
    """argmin theta^2 / 2 + (theta - 1)^2 = 2 / 3, from any start."""
    track = tiny(PFedMeClient, **(BY_HAND | {"inner_steps": 50}))
    track.receive(TRAIN, one(1.0))
    track.begin(1)
    track.step(*batch(1.0))
    assert track.net.w.item() == pytest.approx(2 / 3, abs=1e-6)


def test_a_very_large_prox_holds_theta_at_w():
    """With prox 1e9 the band has no length: neither moves, and nothing explodes."""
    track = tiny(PFedMeClient, **(BY_HAND | {"prox": 1e9, "outer_lr": 1e-9}))
    track.receive(TRAIN, one(1.0))
    track.begin(5)
    for _ in range(5):
        track.step(*batch(1.0))
    assert track.net.w.item() == pytest.approx(1.0, abs=1e-6)
    assert track.send(TRAIN)["w"].item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("beta", "expected"), [(1, 0.5), (0.5, 0.75), (2, 0.0), (0, 1.0)])
def test_server_mixing_by_hand(beta, expected):
    """w = 1; 10 images say 2, 30 say 0: their mean is 0.5. (1 - beta) * 1 + beta * 0.5."""
    track = server_tracks(settings_with(beta=beta), SITES)["personal"]
    track.load_files({"personal": one(1.0) | {"steps": torch.tensor(3)}})
    track.accept(TRAIN, SITES[0], one(1.0) | {"steps": torch.tensor(5)}, 10)
    track.accept(TRAIN, SITES[1], one(-1.0) | {"steps": torch.tensor(7)}, 30)
    track.close(TRAIN)
    assert track.weights["w"].item() == pytest.approx(expected)
    assert track.weights["steps"].item() == 10, "integers are the largest site's, not mixed"


def settings_with(**options):
    text = ", ".join(f"{k}: {v}" for k, v in ({"kind": "pfedme"} | options).items())
    return small_settings(overrides=[f"tracks.personal={{{text}}}", "task.unet.norm=BATCH"])


def test_theta_is_scored_and_delivered_and_w_is_sent():
    settings = settings_with(prox=1.0, outer_lr=0.5)
    server = server_tracks(settings, SITES)["personal"]
    down = server.payload(TRAIN, SITES[0])
    track = client_tracks(settings, SiteContext(0, 3, CPU))["personal"]
    update = train(track, down, noise(3))
    assert set(update) == set(server.expects(TRAIN))
    assert payload_bytes({"p": update}) == payload_bytes({"p": down})
    theta = {k: v.clone() for k, v in track.net.state_dict().items()}
    w = {k: down[k] + v for k, v in update.items()}
    assert any(not torch.allclose(theta[k], w[k], atol=1e-5) for k in w)
    counters = [k for k in w if k.endswith("num_batches_tracked")]
    assert counters and all(w[k].item() == theta[k].item() == 15 for k in counters), "3 batches of 5 passes"

    track._best_score = -1.0  # whatever the first model scored, the last one wins
    track.validate(DELIVER, noise(2))
    track.receive(TRAIN, {})
    first, delivered = initial_weights(track.build, track.settings.seed), track.send(DELIVER)
    assert all(torch.allclose(first[k] + delivered[k], theta[k], atol=1e-6) for k in theta)


def test_state_survives_a_restart():
    settings = settings_with()
    down = server_tracks(settings, SITES)["personal"].payload(TRAIN, SITES[0])
    straight, restarted = (client_tracks(settings, SiteContext(0, 3, CPU))["personal"] for _ in range(2))
    train(straight, down, noise(3))
    restarted.load_state({k: v.clone() for k, v in straight.state().items()})
    assert all(torch.equal(v, restarted.net.state_dict()[k]) for k, v in straight.net.state_dict().items())
    a, b = (train(t, down, noise(3, seed=1)) for t in (straight, restarted))
    assert all(torch.equal(a[k], b[k]) for k in a)
    a, b = straight.state(), restarted.state()
    assert set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"prox": 0}, "prox must be a number of at least 1e-06, got 0"),
        ({"prox": 0.03}, "pfedme: outer_lr * prox is 1.8 and w would jump past theta; with prox 0.03, outer_lr may be"),
        ({"inner_steps": 0}, "inner_steps must be a whole number from 1 to 1000"),
        ({"inner_lr": "fast"}, "inner_lr must be a number"),
        ({"beta": -1}, "beta must be a number of at least 0"),
        ({"mu": 1}, "unknown setting 'mu'; known: prox, inner_steps, inner_lr, outer_lr, beta"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, words):
    with pytest.raises(UserError) as error:
        server_tracks(settings_with(**option), SITES)
    assert words in str(error.value) and "\n" not in str(error.value)
