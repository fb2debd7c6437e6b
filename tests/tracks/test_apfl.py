"""APFL on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.tracks.apfl import APFLClient
from fedsm.tracks.base import DELIVER, TRAIN
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.small_site import (
    Line,
    beside_global,
    continues_after_restart,
    line,
    make_site,
    play_round,
    refusal,
    same,
    step,
)


def make_pair(v: float, w_g: float, net=Line, **options):
    """The global and the personal track of a site at the start of a round."""
    common, client = line(SegmentationClient, net=net), line(APFLClient, net=net, **options)
    client.site.tracks |= {"global": common, "personal": client}
    client.own.w.data.fill_(v)
    payload = {k: x.clone() for k, x in common.net.state_dict().items()} | {"w": torch.tensor([w_g])}
    common.receive(TRAIN, payload)
    client.receive(TRAIN, {})
    client.begin(1)
    return common, client


def test_a_step_by_hand():
    """v = 2, w = 1, alpha = 0.5, so vbar = 1.5; y = 4, eta = 0.1, eta_alpha = 0.1; the gradient at vbar is -2.5.

    w     <- 1 - 0.1 * (1 - 4)          = 1.3        the global track's own step, before
    v     <- 2 - 0.1 * 0.5 * -2.5       = 2.125
    alpha <- 0.5 - 0.1 * (2 - 1) * -2.5 = 0.75       v and w as they were in vbar
    vbar  <- 0.75 * 2.125 + 0.25 * 1.3  = 1.91875
    """
    common, client = make_pair(2.0, 1.0, alpha=0.5, adapt="yes", eta_alpha=0.1)
    assert client.net.w.item() == 1.5
    assert step(common, 4.0) == 1.3
    assert step(client, 4.0) == 1.91875
    assert client.own.w.item() == pytest.approx(2.125)
    assert client.alpha == pytest.approx(0.75)
    assert client.send(DELIVER)["w"].item() == pytest.approx(1.91875)
    assert client.send(TRAIN) == {}


def test_the_next_round_mixes_with_the_new_global_model():
    """v = 2.125, alpha = 0.75, and w_g = 3 comes: vbar = 1.59375 + 0.75 = 2.34375, but only when training begins:
    what is scored first is the mixture that the round before left."""
    common, client = make_pair(2.0, 1.0, alpha=0.5, adapt="yes", eta_alpha=0.1)
    step(common, 4.0)
    step(client, 4.0)
    common.receive(TRAIN, {"w": torch.tensor([3.0])})
    client.receive(TRAIN, {})
    assert client.net.w.item() == pytest.approx(1.91875)
    client.begin(1)
    assert client.net.w.item() == pytest.approx(2.34375)


def test_alpha_stays_without_adapt():
    """As above with alpha = 0.5 throughout: vbar = 0.5 * 2.125 + 0.5 * 1.3 = 1.7125."""
    common, client = make_pair(2.0, 1.0, alpha=0.5, adapt="no", eta_alpha=0.1)
    step(common, 4.0)
    assert step(client, 4.0) == 1.7125
    assert client.alpha == 0.5


@pytest.mark.parametrize(("y", "alpha"), [(4.0, 1.0), (-4.0, 0.0)])
def test_alpha_is_clipped(y, alpha):
    """eta_alpha = 10: 0.5 - 10 * 1 * (1.5 - 4) = 25.5 becomes 1, and 0.5 - 10 * 1 * (1.5 + 4) = -54.5 becomes 0."""
    common, client = make_pair(2.0, 1.0, alpha=0.5, adapt="yes", eta_alpha=10)
    step(common, y)
    step(client, y)
    assert client.alpha == alpha
    assert torch.equal(client.net.w, client.own.w if alpha else common.net.w)


class Counting(Line):
    """A line with a float buffer (the mean of what it sees, in training) and a counter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.training:
            self.mean.copy_(y.detach().mean())
            self.steps += 1
        return y


def test_float_buffers_are_mixed_and_integers_are_the_own_network_s():
    """One step on x = 1: the mixture's pass leaves its mean 1.5 with v, the global one's is 1: 0.5 * 1.5 + 0.5 * 1.

    The global copy saw ten batches before: the mixture counts its own one.
    """
    common, client = make_pair(2.0, 1.0, net=Counting, alpha=0.5, adapt="no", eta_alpha=0)
    common.net.steps.fill_(10)
    step(common, 4.0)
    step(client, 4.0)
    assert (common.net.mean.item(), client.net.mean.item()) == (1.0, 1.25)
    assert (common.net.steps.item(), client.net.steps.item()) == (11, 1)


@pytest.mark.parametrize(("alpha", "equal"), [("1", True), ("0.9", False)])
def test_alpha_one_is_local_to_the_bit(alpha, equal):
    apfl = make_site(beside_global(f"{{kind: apfl, alpha: {alpha}, adapt: no}}"))
    local = make_site(beside_global("{kind: local}"))
    for number in (1, 2):
        play_round(apfl, number)
        play_round(local, number)
    state = apfl["personal"].state()
    assert same({key: state[key] for key in local["personal"].state()}, local["personal"].state()) is equal


def test_alpha_zero_is_the_global_copy():
    apfl = make_site(beside_global("{kind: apfl, alpha: 0, adapt: no}"))
    for number in (1, 2):
        play_round(apfl, number)
    assert same(apfl["personal"].net.state_dict(), apfl["global"].net.state_dict())


def test_the_global_track_does_not_feel_it():
    apfl, alone = make_site(beside_global("{kind: apfl}")), make_site("{global: {kind: fedavg}}")
    for number in (1, 2):
        play_round(apfl, number)
        play_round(alone, number)
    assert same(apfl["global"].send(TRAIN), alone["global"].send(TRAIN))


def test_goes_on_after_a_restart(tmp_path):
    tracks = beside_global("{kind: apfl, eta_alpha: 1}")
    assert continues_after_restart(tmp_path, tracks)
    site = make_site(tracks)
    play_round(site, 1)
    assert site["personal"].alpha != 0.5
    assert site["personal"].state()["alpha"].item() == site["personal"].alpha


def test_starts_afresh_without_state():
    site = make_site(beside_global("{kind: apfl, eta_alpha: 1}"))
    fresh = {k: v.clone() for k, v in site["personal"].state().items()}
    play_round(site, 1)
    site["personal"].load_state({})
    assert same(site["personal"].state(), fresh)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("alpha: 1.1", "alpha must be a number from 0 to 1, got 1.1"),
        ("alpha: -0.1", "alpha must be a number from 0 to 1, got -0.1"),
        ("eta_alpha: -1", "eta_alpha must be a number of at least 0, got -1"),
        ("adapt: perhaps", "adapt must be yes or no, got 'perhaps'"),
    ],
)
def test_bad_options_are_refused(option, problem):
    assert refusal(beside_global(f"{{kind: apfl, {option}}}")) == f"track 'personal': {problem}"


@pytest.mark.parametrize("word", ["yes", "no", "'yes'", "'no'", "true"])
def test_adapt_may_be_written_as_yaml_has_it(word):
    site = make_site(beside_global(f"{{kind: apfl, adapt: {word}}}"))
    assert site["personal"].options["adapt"] == ("no" if "no" in word else "yes")


def test_needs_a_global_track():
    assert "list `global` as the first track" in refusal("{personal: {kind: apfl}}")
    assert refusal(beside_global("{kind: apfl}")) == ""
