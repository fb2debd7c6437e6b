"""Per-FedAvg on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.tensors import payload_bytes
from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.perfedavg import PerFedAvgClient
from tests.helpers.plain_shared_methods import batch, one, tiny
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_site import noise, train

CPU = torch.device("cpu")


def make(variant: str = "fo", inner_lr: float = 0.5, adapt_steps: int = 1):
    """A `Line` at w = 1 whose meta step is plain: w - 0.1 * meta gradient."""
    track = tiny(PerFedAvgClient, variant=variant, inner_lr=inner_lr, adapt_steps=adapt_steps)
    track.learner.optimizer = torch.optim.SGD(track.shared.parameters(), lr=0.1)
    track.receive(TRAIN, one(1.0))
    return track


@pytest.mark.parametrize(("variant", "change"), [("fo", -0.2), ("hf", -0.1)])
def test_a_pair_by_hand(variant, change):
    """w = 1, a = 0.5. D: x = 1, f = w^2 / 2, gradient w. D': x = 2, f = (2 w)^2 / 2, gradient 4 w.

    w~ = 1 - 0.5 * 1 = 0.5,  v = 4 * 0.5 = 2.
    fo: w <- 1 - 0.1 * 2 = 0.8.
    hf: the Hessian on D is 1, so v - 0.5 * 1 * v = 1 and w <- 0.9. That is the derivative of f(0.5 w; D') = w^2 / 2.
    """
    track = make(variant)
    track.begin(2)
    assert track.step(*batch(1.0)) == pytest.approx(0.5), "f(w; D)"
    assert track.step(*batch(2.0)) == pytest.approx(0.5), "f(w~; D') = (2 * 0.5)^2 / 2"
    assert track.send(TRAIN)["w"].item() == pytest.approx(change, abs=1e-4)


@pytest.mark.parametrize(("steps", "theta"), [(1, 0.5), (2, -0.5), (9, -0.5)])
def test_adapted_model_by_hand(steps, theta):
    """From w = 1: 1 - 0.5 * 1 = 0.5 on D, then 0.5 - 0.5 * (4 * 0.5) = -0.5 on D'. There is no third batch."""
    track = make(adapt_steps=steps)
    track.begin(2)
    track.step(*batch(1.0))
    track.step(*batch(2.0))
    assert track.net.w.item() == pytest.approx(theta, abs=1e-6)


def test_a_last_batch_without_partner_is_its_own():
    """Third batch D: x = 1, w = 0.8 by then: w~ = 0.4, v = 0.4, w <- 0.8 - 0.04 = 0.76."""
    track = make()
    track.begin(3)
    for x in (1.0, 2.0, 1.0):
        track.step(*batch(x))
    assert track.send(TRAIN)["w"].item() == pytest.approx(-0.24, abs=1e-6)


def test_adam_sees_the_meta_gradient():
    """The gradient of the pair above is 2: first moment 0.1 * 2, second 0.001 * 2^2; the first step is lr = 0.1."""
    track = tiny(PerFedAvgClient, variant="fo", inner_lr=0.5, adapt_steps=1)
    track.receive(TRAIN, one(1.0))
    track.begin(2)
    track.step(*batch(1.0))
    track.step(*batch(2.0))
    assert track.state()["adam/0.exp_avg"].item() == pytest.approx(0.2)
    assert track.state()["adam/0.exp_avg_sq"].item() == pytest.approx(0.004)
    assert track.send(TRAIN)["w"].item() == pytest.approx(-0.1, abs=1e-6)


def settings_with(**options):
    text = ", ".join(f"{k}: {v}" for k, v in ({"kind": "per-fedavg"} | options).items())
    return small_settings(overrides=[f"tracks.personal={{{text}}}", "task.unet.norm=BATCH"])


def test_without_inner_steps_it_is_fedavg_on_every_second_batch():
    tracks = client_tracks(settings_with(inner_lr=0), SiteContext(0, 3, CPU))
    down = server_tracks(settings_with(), SITES)["personal"].payload(TRAIN, SITES[0])
    four = noise(4)
    ours, theirs = train(tracks["personal"], down, four), train(tracks["global"], down, four[1::2])
    for name, _ in tracks["global"].net.named_parameters():
        assert torch.equal(ours[name], theirs[name])


def test_hf_leaves_no_trace_in_the_statistics():
    """Four batches, four passes of the meta model, whatever the variant."""
    down = server_tracks(settings_with(), SITES)["personal"].payload(TRAIN, SITES[0])
    for variant in ("fo", "hf"):
        track = client_tracks(settings_with(variant=variant), SiteContext(0, 3, CPU))["personal"]
        update = train(track, down, noise(4))
        counters = [v.item() for k, v in update.items() if k.endswith("num_batches_tracked")]
        assert counters and set(counters) == {4}


def test_state_survives_a_restart():
    settings = settings_with()
    down = server_tracks(settings, SITES)["personal"].payload(TRAIN, SITES[0])
    straight, restarted, fresh = (client_tracks(settings, SiteContext(0, 3, CPU))["personal"] for _ in range(3))
    train(straight, down, noise(3))
    restarted.load_state({k: v.clone() for k, v in straight.state().items()})
    assert restarted.validate(TRAIN, noise(2)) == straight.validate(TRAIN, noise(2))
    a, b, c = (train(t, down, noise(3, seed=1)) for t in (straight, restarted, fresh))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a), "Adam's moments matter"
    for track in (straight, restarted):
        track.validate(DELIVER, noise(2))
        track.receive(TRAIN, {})
    x, y = straight.send(DELIVER), restarted.send(DELIVER)
    assert all(torch.equal(x[k], y[k]) for k in x)


def test_server_holds_the_shared_model_and_the_delivered_ones():
    """w goes down and comes up each round; personal networks come once; only they compete."""
    settings = settings_with()
    track, other = (server_tracks(settings, SITES)["personal"] for _ in range(2))
    model = payload_bytes({"personal": track.expects(DELIVER)})
    for tensors in (track.payload(TRAIN, SITES[0]), track.expects(TRAIN)):
        assert payload_bytes({"personal": tensors}) == model
    assert track.payload(DELIVER, SITES[0]) == {}
    assert track.models() == {f"personal.{site}": [site] for site in SITES} and list(track.files()) == ["personal"]

    track.accept(TRAIN, SITES[0], {k: torch.ones_like(v) for k, v in track.expects(TRAIN).items()}, 4)
    track.close(TRAIN)
    track.accept(DELIVER, SITES[1], {k: v.clone() for k, v in track.expects(DELIVER).items()})
    assert list(track.files()) == ["personal", "personal.site-2"]

    other.load_files(track.files())
    assert list(other.files()) == ["personal", "personal.site-2"]
    assert all(torch.equal(v, track.weights[k]) for k, v in other.payload(TRAIN, SITES[0]).items())
    other.close(TRAIN)
    assert list(other.files()) == ["personal"], "a run that goes on makes new ones"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"variant": "so"}, "variant must be fo or hf"),
        ({"inner_lr": -1}, "inner_lr must be a number of at least 0, got -1"),
        ({"adapt_steps": 0}, "adapt_steps must be a whole number from 1 to 1000, got 0"),
        ({"adapt_steps": 1.5}, "adapt_steps must be a whole number"),
        ({"lam": 0.5}, "unknown setting 'lam'; known: variant, inner_lr, adapt_steps"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, words):
    with pytest.raises(UserError, match="personal") as error:
        server_tracks(settings_with(**option), SITES)
    assert words in str(error.value) and "\n" not in str(error.value)
