"""The ensemble's mixture and its gradient, by hand; what goes down."""

import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.nets import build_selector
from fedsm.selectors.inference import blend, mix
from fedsm.tracks import build_inference_selector, client_tracks, server_tracks
from fedsm.tracks.base import TRAIN, SiteContext
from tests.helpers.small_jobs import SITES, small_settings


def logit(p: float) -> torch.Tensor:
    return torch.logit(torch.tensor(p)).expand(1, 1, 1, 1)


def test_mixture_by_hand():
    """yhat = (0.75, 0.25), h = (0.8, 0.4): 0.75 * 0.8 + 0.25 * 0.4 = 0.7."""
    mixed = mix(torch.tensor([[0.75, 0.25]]), torch.stack([logit(0.8), logit(0.4)]).sigmoid())
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

    track = client_tracks(small_settings(method="fedsm-ensemble"), SiteContext(0, 2, torch.device("cpu")))["selector"]
    track.learner.net, track._nets = Logits(), [Fixed(0.8), Fixed(0.4)]
    loss = track.loss(torch.zeros(1, 3, 1, 1), torch.ones(1, 1, 1, 1), None)
    loss.backward()
    assert loss.item() == pytest.approx(1 - 1.2 / 1.6, abs=1e-4)
    assert track.net.z.grad.tolist() == pytest.approx([-0.078125, 0.078125], abs=1e-4)


def test_a_site_gets_every_network_once():
    """The other sites' personal ones come with the selector; the global and its own with their tracks."""
    settings = small_settings(method="fedsm-ensemble")
    servers = server_tracks(settings, SITES)
    servers["global"].network.weights = {key: value + 9 for key, value in servers["global"].weights.items()}
    first = servers["personal"].payload(TRAIN, SITES[0])
    servers["personal"].load_files(
        {f"personal.{site}": {key: value + k for key, value in first.items()} for k, site in enumerate(SITES)}
    )
    down = servers["selector"].payload(TRAIN, SITES[1])
    assert {k.split("/")[1] for k in down if k.startswith("model/")} == {"0", "2"}
    clients = client_tracks(settings, SiteContext(1, len(SITES), torch.device("cpu")))
    for name, track in clients.items():
        track.receive(TRAIN, servers[name].payload(TRAIN, SITES[1]))
    wanted = [servers["global"].weights, *(servers["personal"].payload(TRAIN, s) for s in SITES)]
    for net, weights in zip(clients["selector"]._nets, wanted, strict=True):
        assert all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())


def test_a_selector_of_other_outputs_is_refused():
    """Of a version that did not weigh the global network: its rows would be read as other models'."""
    settings = small_settings(method="fedsm-ensemble")
    old = dict(build_selector(settings.task, len(SITES)).state_dict())
    track = server_tracks(settings, SITES)["selector"]
    more = server_tracks(settings, [*SITES, "site-4"])["selector"]
    for use in (
        lambda: track.load_files({"selector": old}),
        lambda: track.leave({"selector": old}, SITES[-1]),
        lambda: more.join({"selector": old}, ["site-4"]),
        lambda: build_inference_selector(settings, len(SITES), old, torch.device("cpu")),
    ):
        with pytest.raises(UserError, match="has 3 outputs, not 4: it is of other sites"):
            use()


def test_personal_networks_must_travel():
    with pytest.raises(UserError, match="softpull"):
        server_tracks(small_settings(method="fedsm-ensemble", overrides=["tracks.personal={kind: local}"]), SITES)
