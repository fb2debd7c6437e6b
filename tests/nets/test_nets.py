"""The architectures: sizes that the paper and the documentation name, shapes, settings."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.task_settings import TaskSettings
from fedsm.nets import VGG11, build_selector, build_unet, count_parameters, try_networks
from tests.helpers.small_jobs import small_settings


def task(**given) -> TaskSettings:
    return TaskSettings.from_dict({"name": "t", "channels": 3, "labels": {"disc": [1, 2], "cup": [2]}} | given)


def test_vgg11_sizes():
    assert count_parameters(VGG11(3, 6, "fc")) / 1e6 == pytest.approx(128.8, abs=0.05)
    assert count_parameters(VGG11(3, 6, "gap")) / 1e6 == pytest.approx(9.2, abs=0.05)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("head", ["fc", "gap"])
def test_vgg11_takes_any_channels_and_sizes(channels, head):
    net = VGG11(channels, 4, head, width=0.05)
    assert net(torch.rand(2, channels, 32, 32)).shape == (2, 4)
    assert net(torch.rand(2, channels, 64, 96)).shape == (2, 4)


def test_unet_default_size_and_shape():
    net = build_unet(task())
    assert count_parameters(net) / 1e6 == pytest.approx(1.6, abs=0.05)
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 2, 64, 64)


def test_networks_are_tried_without_weights():
    """At 8192 px an image's features alone would take 17 GB."""
    wide = ["task.unet.channels=[64,128,256,512,1024]", "task.selector_net={head: fc}"]
    try_networks(small_settings(size=8192, batch_size=1, overrides=wide), 6)
    with pytest.raises(UserError, match="no network of these settings at 32 px: Expected more than 1 spatial element"):
        try_networks(small_settings(overrides=["task.unet.channels=[4,8,8,8,8,8]"]), 6)


def test_unet_follows_the_settings():
    small = build_unet(task(unet={"channels": [4, 8], "residual_units": 0}, channels=1))
    assert small(torch.rand(1, 1, 32, 32)).shape == (1, 2, 32, 32)
    assert count_parameters(small) < 5000
    batch = build_unet(task(unet={"channels": [4, 8], "norm": "BATCH"}))
    assert any("num_batches_tracked" in k for k in batch.state_dict())


@pytest.mark.parametrize("unet", [{"levels": 3}, {"channels": [4, 8, 16], "strides": [2]}])
def test_bad_unet_settings_are_refused(unet):
    with pytest.raises(UserError, match="unet"):
        build_unet(task(unet=unet))


@pytest.mark.parametrize("net", [{"head": "attention"}, {"width": 0}, {"depth": 3}])
def test_bad_selector_settings_are_refused(net):
    with pytest.raises(UserError, match="selector"):
        build_selector(task(selector_net=net), 3)
