"""The ensemble's mixture and its gradient, by hand; what goes down."""

import pytest
import torch
from torch import nn

from fedsm.errors import UserError
from fedsm.super_model.inference import blend, mix
from fedsm.tracks import client_tracks, server_tracks
from tests.conftest import SITES, small_settings


def logit(p: float) -> torch.Tensor:
    return torch.logit(torch.tensor(p)).expand(1, 1, 1, 1)


def test_mixture_by_hand():
    """yhat = (0.75, 0.25), h = (0.8, 0.4): 0.75 * 0.8 + 0.25 * 0.4 = 0.7."""
    mixed = mix(torch.tensor([[0.75, 0.25]]), torch.stack([logit(0.8), logit(0.4)]))
    assert mixed.item() == pytest.approx(0.7)


def test_blend_by_hand():
    """yhat = (0.6, 0.1, 0.3): the two most probable share as 0.6 : 0.3 = 2/3 : 1/3. At gamma 0.6 nobody is sure."""
    yhat = torch.tensor([[0.6, 0.1, 0.3]])
    assert blend(yhat, 0.5)[0].tolist() == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert blend(yhat, 0.6)[0].tolist() == [1, 0, 0, 0]


def test_loss_reaches_the_selector_through_the_mixture():
    """One pixel of truth 1, h = (0.8, 0.4), yhat = softmax(0, 0): p = 0.6, L = 1 - 2 p / (1 + p) (eps aside).

    dL/dp = -2 / (1 + p)^2 = -0.78125; dp/dz_1 = yhat_1 (h_1 - p) = 0.5 * 0.2 = 0.1: dL/dz_1 = -0.078125.
    """

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return self.z.expand(len(x), 2)

    class Fixed(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            return logit(self.p)

    track = client_tracks(small_settings(method="fedsm-ensemble"), 0, 2, torch.device("cpu"))["selector"]
    track.net, track._nets = Logits(), [Fixed(0.8), Fixed(0.4)]
    loss = track.loss(track.forward(torch.zeros(1, 3, 1, 1)), torch.ones(1, 1, 1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(1 - 1.2 / 1.6, abs=1e-4)
    assert track.net.z.grad.tolist() == pytest.approx([-0.078125, 0.078125], abs=1e-4)


def test_all_personal_networks_go_down():
    track = server_tracks(small_settings(method="fedsm-ensemble"), SITES)["selector"]
    assert {k.split("/")[1] for k in track.payload(SITES[0]) if k.startswith("model/")} == {"0", "1", "2"}


def test_personal_networks_must_travel():
    with pytest.raises(UserError, match="softpull"):
        server_tracks(small_settings(method="fedsm-ensemble", overrides=["tracks.personal={kind: local}"]), SITES)
