"""Ditto on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.tracks.base import TRAIN
from fedsm.tracks.ditto import DittoClient
from fedsm.tracks.segmentation import SegmentationClient
from tests.helpers.small_site import (
    beside_global,
    continues_after_restart,
    line,
    make_site,
    play_round,
    refusal,
    same,
    step,
)


def test_two_rounds_by_hand():
    """v = 2, y = 3, prox = 0.5, eta = 0.1, gradient (v - 3) + 0.5 (v - w_g):

    round 1, w_g = 1, v = 2:       -1      + 0.5      = -0.5      ->  v = 2.05
                      v = 2.05:    -0.95   + 0.525    = -0.425    ->  v = 2.0925
    round 2, w_g = 3, v = 2.0925:  -0.9075 - 0.45375  = -1.36125  ->  v = 2.228625

    The site's copy of the global model moves in between: v is held near the one that was received.
    """
    common, client = line(SegmentationClient), line(DittoClient, w=2.0, prox=0.5)
    client.site.tracks |= {"global": common, "personal": client}
    seen = []
    for w_g, steps in ((1.0, 2), (3.0, 1)):
        common.receive(TRAIN, {"w": torch.tensor([w_g])})
        client.receive(TRAIN, {})
        client.begin(steps)
        for _ in range(steps):
            step(common, 0.0)
            seen.append(step(client, 3.0))
    assert seen == [2.05, 2.0925, 2.228625]
    assert client.send(TRAIN) == {}


@pytest.mark.parametrize(("prox", "equal"), [("0", True), ("1", False)])
def test_prox_zero_is_local_to_the_bit(prox, equal):
    ditto = make_site(beside_global(f"{{kind: ditto, prox: {prox}}}"))
    local = make_site(beside_global("{kind: local}"))
    for number in (1, 2):
        play_round(ditto, number)
        play_round(local, number)
    assert same(ditto["personal"].state(), local["personal"].state()) is equal


def test_the_global_track_does_not_feel_it():
    ditto, alone = make_site(beside_global("{kind: ditto, prox: 1}")), make_site("{global: {kind: fedavg}}")
    for number in (1, 2):
        play_round(ditto, number)
        play_round(alone, number)
    assert same(ditto["global"].send(TRAIN), alone["global"].send(TRAIN))


def test_goes_on_after_a_restart(tmp_path):
    assert continues_after_restart(tmp_path, beside_global("{kind: ditto, prox: 1}"))


@pytest.mark.parametrize("prox", ["-0.1", ".nan", "yes", "near"])
def test_bad_prox_is_refused(prox):
    reason = refusal(beside_global(f"{{kind: ditto, prox: {prox}}}"))
    assert reason.startswith("track 'personal': prox must be a number of at least 0, got") and "\n" not in reason


def test_a_global_track_that_stays_at_its_site_is_refused():
    assert "cannot be of kind 'local'" in refusal("{global: {kind: local}, personal: {kind: ditto}}")


def test_needs_a_global_track():
    assert "list `global` as the first track" in refusal("{personal: {kind: ditto}}")
    assert refusal(beside_global("{kind: ditto}")) == ""
