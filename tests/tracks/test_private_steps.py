"""Private gradients: what leaves the clip, how large the noise is, and that every kind is covered or refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.nets import build_unet
from fedsm.tracks import KINDS, client_tracks
from fedsm.tracks.base import DELIVER, TRAIN, SiteContext
from fedsm.tracks.learner import Learner, SegmentationLoss
from fedsm.tracks.private_steps import PrivateGradients, StepNoise, make_private
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.track_run import TrackRun, images_of, job_with

CPU = torch.device("cpu")
NONE = 1e-9  # a noise multiplier
REFUSED = {"apfl", "fedrep", "per-fedavg", "pfedme", "selector_gradient"}


def private(net: nn.Module, **noise) -> PrivateGradients:
    return PrivateGradients(net, StepNoise(**({"clip": 1.0, "multiplier": NONE, "batch": 2} | noise)))


def test_clipping_by_hand():
    """f = w x, loss the mean of f: gradients 3 and 0.5. Clipped to 1 they are 1 and 0.5; by B = 4: 0.375."""
    net = nn.Linear(1, 1, bias=False)
    hooks = private(net, batch=4)
    hooks.backward(net(torch.tensor([[3.0], [0.5]])).mean())
    assert net.weight.grad.item() == pytest.approx((1 + 0.5) / 4)
    assert net.weight.grad_sample is None


def test_the_norm_is_over_all_parameters():
    """Gradient (3, 1) of weight and bias, of length sqrt(10): clipped to 1 and divided by B = 2."""
    net = nn.Linear(1, 1)
    private(net).backward(net(torch.tensor([[3.0]])).mean())
    assert net.weight.grad.item() == pytest.approx(3 / 10**0.5 / 2)
    assert net.bias.grad.item() == pytest.approx(1 / 10**0.5 / 2)


def test_noise_has_its_size_and_grows_with_the_networks():
    """z C sqrt(T) / B = 3 * 0.5 * 2 / 8 = 0.375, also where nobody was drawn."""
    net = nn.Linear(100, 100, bias=False)
    hooks = private(net, clip=0.5, multiplier=3.0, batch=8, networks=4, empty=True)
    hooks.backward(net(torch.full((1, 100), 1e6)).mean())
    assert net.weight.grad.std().item() == pytest.approx(0.375, rel=0.05)
    assert abs(net.weight.grad.mean().item()) < 0.02, "the image does not count"


@pytest.mark.parametrize("clip", [1e9, 0.05])
def test_a_unet_has_the_gradients_of_its_single_images(clip):
    """Convolutions, transposed ones, instance norm, PReLU: a backward pass for each image says the same."""
    settings = job_with("fedavg")
    net, loss = build_unet(settings.task), SegmentationLoss("dice+ce")
    plain = copy.deepcopy(net)
    images, labels = images_of(1)
    sums = [torch.zeros_like(p) for p in plain.parameters()]
    for x, y in zip(images.split(1), labels.split(1), strict=True):
        gradients = torch.autograd.grad(loss(plain(x), y), list(plain.parameters()))
        length = torch.stack([g.norm() for g in gradients]).norm()
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient * min(1.0, clip / length.item())
    hooks = private(net, clip=clip, multiplier=NONE / clip, batch=4)
    hooks.backward(loss(net(images), labels))
    for parameter, total in zip(net.parameters(), sums, strict=True):
        assert torch.allclose(parameter.grad, total / 4, atol=1e-6)


def test_what_depends_on_no_image_is_neither_clipped_nor_hidden():
    """loss w x with x = 3 and a penalty 10 w: the gradient is 1 (clipped) + 10."""
    net = nn.Linear(1, 1, bias=False)
    learner = Learner(net, 1.0, CPU)
    learner.optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    learner.private = private(net, batch=1)
    before = net.weight.item()
    value = learner.descend(net(torch.tensor([[3.0]])).mean(), 10 * net.weight.sum())
    assert net.weight.item() == pytest.approx(before - 11, rel=1e-5)
    assert value == pytest.approx(13 * before, rel=1e-5)


def sent(kind: str, images: int) -> dict[str, torch.Tensor]:
    """What a site with overwhelming noise, always the same, sends in a round and at the end."""
    settings = job_with(kind)
    run = TrackRun(settings)
    servers = run.servers
    tracks = client_tracks(settings, SiteContext(0, len(SITES), CPU))
    for track in tracks.values():
        track.load_state({})
    make_private(tracks, StepNoise(1e-3, 1e9, 4, rng=np.random.default_rng(0)))
    data = images_of(images)
    for name, track in tracks.items():
        servers[name].open(1, run.best_models)
        track.receive(TRAIN, copy.deepcopy(servers[name].payload(TRAIN, SITES[0])))
        track.validate(TRAIN, [images_of(7)])
        track.begin(4, [data])
    torch.manual_seed(0)
    for rows in torch.arange(4).split(2):
        for track in tracks.values():
            track.step(data[0][rows], data[1][rows], rows)
    found = {}
    for name, track in tracks.items():
        for phase in (TRAIN, DELIVER):
            if phase == DELIVER:
                track.receive(DELIVER, servers[name].payload(DELIVER, SITES[0]))
                track.validate(DELIVER, [images_of(7)])
            found |= {f"{name}/{phase}/{k}": v for k, v in track.send(phase, [data]).items()}
    return found


@pytest.mark.parametrize("kind", sorted(set(KINDS) - REFUSED - {"selector_statistics"}))
def test_nothing_of_an_image_passes_by_the_noise(kind):
    """Two sites with other images and the same noise send the same: no way around the clip and the noise is left."""
    one, other = sent(kind, 0), sent(kind, 2)
    assert one and one.keys() == other.keys()
    for key, value in one.items():
        assert torch.allclose(value, other[key], rtol=1e-4, atol=1e-4 * value.abs().max().item() + 1e-12), key


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_the_others_are_refused_in_words(kind):
    tracks = client_tracks(job_with(kind), SiteContext(0, len(SITES), CPU))
    with pytest.raises(UserError, match=f"no differential privacy with '{kind}'") as caught:
        make_private(tracks, StepNoise(1.0, 1.0, 4))
    assert "take `dp` out of fedsm_site.yaml" in str(caught.value) and kind in caught.value.public


@pytest.mark.parametrize("norm", ["BATCH", "[BATCH, {affine: false, track_running_stats: false}]"])
def test_batch_norm_is_refused_in_words(norm):
    settings = small_settings(method="fedavg", overrides=[f"task.unet.norm={norm}"])
    tracks = client_tracks(settings, SiteContext(0, len(SITES), CPU))
    with pytest.raises(UserError, match="BatchNorm2d cannot be made private; ask for a job whose task.unet.norm"):
        make_private(tracks, StepNoise(1.0, 1.0, 4))
