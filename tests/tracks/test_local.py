"""Local training on numbers small enough to do by hand."""

import torch

from fedsm.tracks.base import TRAIN
from fedsm.tracks.local import LocalClient
from tests.helpers.small_site import line, step


def test_two_rounds_by_hand():
    """v = 2, y = 3, eta = 0.1, gradient v - 3: 2 -> 2.1 -> 2.19; what comes down in round 2 is not looked at."""
    client, seen = line(LocalClient, w=2.0), []
    for payload in ({}, {"w": torch.tensor([9.0])}):
        client.receive(TRAIN, payload)
        client.begin(1)
        seen.append(step(client, 3.0))
    assert seen == [2.1, 2.19]
    assert client.send(TRAIN) == {}
