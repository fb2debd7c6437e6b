"""FedProx on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.tracks.base import TRAIN
from fedsm.tracks.fedprox import FedProxClient, squared_distance
from tests.helpers.small_site import Line, continues_after_restart, line, make_site, play_round, refusal, same, step


def test_two_steps_by_hand():
    """w_g = 1, y = 3, mu = 0.5, eta = 0.1, gradient (w - 3) + 0.5 (w - 1):

    w = 1:    -2   + 0   = -2    ->  w = 1.2
    w = 1.2:  -1.8 + 0.1 = -1.7  ->  w = 1.37, so the site sends +0.37
    """
    client = line(FedProxClient, mu=0.5)
    client.receive(TRAIN, {"w": torch.tensor([1.0])})
    client.begin(2)
    assert [step(client, 3.0), step(client, 3.0)] == [1.2, 1.37]
    assert client.send(TRAIN)["w"].item() == pytest.approx(0.37)


def test_the_next_round_is_held_near_its_own_model():
    """Round 2 brings w_g = 2: gradient -1 + 0.5 * 0, w = 2.1; then -0.9 + 0.5 * 0.1 = -0.85, w = 2.185."""
    client = line(FedProxClient, mu=0.5)
    for w_g in (1.0, 2.0):
        client.receive(TRAIN, {"w": torch.tensor([w_g])})
        client.begin(2)
        seen = [step(client, 3.0), step(client, 3.0)]
    assert seen == [2.1, 2.185]


def test_reported_loss_holds_the_term():
    """w = 1.2 at y = 3: 1.8^2 / 2 + 0.5 / 2 * 0.2^2 = 1.62 + 0.01 = 1.63."""
    client = line(FedProxClient, mu=0.5)
    client.receive(TRAIN, {"w": torch.tensor([1.0])})
    client.begin(2)
    step(client, 3.0)
    assert client.step(torch.ones(1, 1), torch.full((1, 1), 3.0)) == pytest.approx(1.63)


def test_frozen_parameters_and_buffers_take_no_part():
    """Of w = 3 (trainable), frozen = 5 and a buffer, only w counts: (3 - 1)^2 = 4."""
    net = Line()
    net.w.data.fill_(3.0)
    net.frozen = torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False)
    net.register_buffer("seen", torch.tensor(7))
    assert squared_distance(net, [torch.tensor([1.0])]).item() == 4.0


@pytest.mark.parametrize(("mu", "equal"), [("0", True), ("1", False)])
def test_mu_zero_is_fedavg_to_the_bit(mu, equal):
    prox, plain = make_site(f"{{global: {{kind: fedprox, mu: {mu}}}}}"), make_site("{global: {kind: fedavg}}")
    for number in (1, 2):
        play_round(prox, number)
        play_round(plain, number)
        assert same(prox["global"].send(TRAIN), plain["global"].send(TRAIN)) is equal


def test_goes_on_after_a_restart(tmp_path):
    assert continues_after_restart(tmp_path, "{global: {kind: fedprox, mu: 1}}")


@pytest.mark.parametrize("mu", ["-0.1", ".nan", ".inf", "yes", "near"])
def test_bad_mu_is_refused(mu):
    reason = refusal(f"{{global: {{kind: fedprox, mu: {mu}}}}}")
    assert reason.startswith("track 'global': mu must be a number at least 0, got") and "\n" not in reason


def test_unknown_option_is_refused():
    assert refusal("{global: {kind: fedprox, lam: 1}}") == "track 'global' takes no option 'lam'; known: mu"
    assert refusal("{global: {kind: fedprox}}") == ""
