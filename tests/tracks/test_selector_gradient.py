"""The trained selector with server-side Adam, by hand."""

import torch
from torch.nn import functional

from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.base import TRAIN, SiteContext
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


def make_server(lr: float = 0.1):
    return server_tracks(small_settings(selector="gradient", selector_lr=lr), SITES)["selector"]


def fill(track, value: float) -> dict:
    return {k: torch.full_like(v, value) for k, v in track.expects(TRAIN).items()}


def test_first_adam_step_by_hand():
    """Gradients 1 and 4 from 30 and 10 images: g = (30 * 1 + 10 * 4) / 40 = 1.75.

    Adam's first step with bias correction is -lr * g / (|g| + eps) = -0.1, whatever the size of g.
    """
    track = make_server()
    before = {k: v.clone() for k, v in track.weights.items()}
    track.accept(TRAIN, "site-1", fill(track, 1.0), 30)
    track.accept(TRAIN, "site-2", fill(track, 4.0), 10)
    track.close(TRAIN)
    for key, old in before.items():
        assert torch.allclose(track.weights[key], old - 0.1, atol=1e-6)


def test_second_moment_sees_the_mean_gradient():
    """m = 0.1 * 1.75 = 0.175, v = 0.001 * 1.75^2 = 0.0030625: a mean, not a sum over 40 images."""
    track = make_server()
    track.accept(TRAIN, "site-1", fill(track, 1.0), 30)
    track.accept(TRAIN, "site-2", fill(track, 4.0), 10)
    track.close(TRAIN)
    moments = track.files()["selector.adam"]
    key = next(iter(track.weights))
    assert torch.allclose(moments[f"{key}/exp_avg"], torch.tensor(0.175), atol=1e-6)
    assert torch.allclose(moments[f"{key}/exp_avg_sq"], torch.tensor(0.0030625), atol=1e-8)


def test_no_answer_takes_no_step():
    track = make_server()
    before = {k: v.clone() for k, v in track.weights.items()}
    track.close(TRAIN)
    assert all(torch.equal(before[k], track.weights[k]) for k in before)


def test_goes_on_from_its_files():
    """Two steps in one go equal one step, save, load in another order of keys, one step."""
    straight, first = make_server(), make_server()
    for track in (straight, first):
        track.accept(TRAIN, "site-1", fill(track, 0.3), 5)
        track.close(TRAIN)
    second = make_server()
    second.load_files({k: {n: v[n].clone() for n in sorted(v, reverse=True)} for k, v in first.files().items()})
    for track in (straight, second):
        track.accept(TRAIN, "site-1", fill(track, -0.2), 5)
        track.close(TRAIN)
    assert all(torch.equal(straight.weights[k], second.weights[k]) for k in straight.weights)


def test_client_sends_the_mean_gradient_of_the_whole_pass():
    """Batches of 3 and 2 images: the sum of the weighted batch gradients is the gradient of the mean over all 5."""
    settings = small_settings(selector="gradient")
    client = client_tracks(settings, SiteContext(1, 3, CPU))["selector"]
    client.receive(TRAIN, make_server().payload(TRAIN, "site-2"))
    torch.manual_seed(0)
    images = torch.rand(5, 3, 32, 32)
    client.begin(5)
    for batch in (images[:3], images[3:]):
        client.step(batch, None)
    update = client.send(TRAIN)

    client.net.zero_grad()
    functional.cross_entropy(client.net(images), torch.full((5,), 1)).backward()
    for name, parameter in client.net.named_parameters():
        assert torch.allclose(update[name], parameter.grad, atol=1e-6)
