"""MONAI's networks in place of the U-Net: what tracks, exports and selectors need of each that may be named."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.network_settings import NETWORKS
from fedsm.core.task_settings import TaskSettings
from fedsm.nets import build_unet, try_networks
from fedsm.nets.first_weights import initial_weights
from fedsm.tracks import check_tracks
from fedsm.tracks.fedbn import unet_norm_entries
from tests.helpers.small_jobs import SITES, small_settings


def task(**given) -> TaskSettings:
    return TaskSettings.from_dict({"name": "t", "channels": 3, "labels": {"disc": [1, 2], "cup": [2]}} | given)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_what_tracks_need(name):
    """Logits of the image's size that are finite and equal for equal weights; weights that follow from the seed; norm
    layers that FedBN and SoftPull find; a trace, which ONNX and bundles are made of; shapes without weights."""
    own = task(network={"name": name})
    try_networks(small_settings(size=64, overrides=[f"task.network={{name: {name}}}"]), 3)
    first, again = (initial_weights(lambda: build_unet(own), 3) for _ in range(2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    net = build_unet(own).eval()
    net.load_state_dict(first)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        logits = net(images)
        assert logits.shape == (2, 2, 64, 64) and torch.isfinite(logits).all()
        assert torch.equal(net(images), logits)
        traced = torch.jit.trace(net, images, check_trace=False)
        assert torch.allclose(traced(images[:1]), logits[:1], atol=1e-4)
    net.train()
    assert isinstance(net(images), torch.Tensor) and net(images).shape == (2, 2, 64, 64)
    assert unet_norm_entries(own) and unet_norm_entries(own) < set(first)


def test_arguments_are_those_of_monais_class():
    small, usual = (
        build_unet(task(network={"name": "SegResNet"} | more)) for more in ({"init_filters": 8}, {"init_filters": 32})
    )
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in usual.parameters()) / 10
    net = build_unet(task(network={"name": "BasicUNet", "norm": ["BATCH", {"affine": True}]}))
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in net.modules())


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"name": "SegRes"}, "no network 'SegRes'; did you mean 'SegResNet'\\? known: AttentionUnet"),
        ({"name": 3}, "no network 3"),
        ({"init_filters": 3}, "no network None"),
        ({"name": "os.system"}, "no network"),
        ({"name": "SegResNet", "in_channels": 1}, "in_channels follows from the task"),
        ({"name": "FlexibleUNet", "pretrained": True}, "pretrained cannot be set"),
        ({"name": "SegResNet", "act": [[[[["x"]]]]]}, "'act' must be a number"),
    ],
)
def test_what_is_no_network_is_refused_by_the_settings(network, words):
    with pytest.raises(UserError, match=words):
        task(network=network)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("{name: SegResNet, filters: 3}", "SegResNet of MONAI has no argument 'filters'; .*known: init_filters"),
        ("{name: SegResNet, init_filters: 7}", "no network of these settings"),
        ("{name: SegResNet, init_filters: 100000}", "parameters, the limit is|no network of these settings"),
        ("{name: FlexibleUNet, backbone: resnet}", "no network of these settings"),
    ],
)
def test_what_makes_no_network_is_refused_before_anything_costs_time(network, words):
    with pytest.raises(UserError, match=words):
        try_networks(small_settings(size=64, overrides=[f"task.network={network}"]), 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"personal": "fedrep"}, "fedrep's head"),
        ({"overrides": ["tracks.selector.descriptor=encoder"]}, "`encoder` needs"),
    ],
)
def test_what_looks_into_the_unet_says_no(options, words):
    more = options.pop("overrides", [])
    settings = small_settings(selector="statistics", overrides=["task.network={name: SegResNet}", *more], **options)
    with pytest.raises(UserError, match=words):
        check_tracks(settings, SITES)
