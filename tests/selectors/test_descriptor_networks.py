"""Pooled activations: the random VGG that is the same everywhere, and the encoder of a U-Net."""

import pytest
import torch
from monai.networks.blocks import Convolution
from torch import nn

from fedsm.nets import build_unet
from fedsm.selectors.descriptor import build_descriptor, describe, length_of
from fedsm.selectors.network_features import (
    PooledFeatures,
    encoder_features,
    encoder_length,
    encoder_weights,
    random_features,
)
from tests.helpers.small_jobs import small_settings


def test_pooling_by_hand():
    """One channel of 0, 0, 2, 2 has mean 1 and deviation 1; the next level, twice that, 2 and 2."""

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    image = torch.tensor([0.0, 0.0, 2.0, 2.0]).view(1, 1, 2, 2)
    assert PooledFeatures([nn.Identity(), Twice()], 4)(image).tolist() == [[1, 1, 2, 2]]


@pytest.mark.parametrize(("channels", "length"), [(3, 63 + 496), (1, 14 + 496)])
def test_image_and_random_is_the_image_descriptor_and_496_numbers(channels, length):
    settings = small_settings(overrides=[f"task.channels={channels}"])
    images = torch.rand(2, channels, 32, 48)
    rows = build_descriptor("image+random", settings, {})(images)
    assert rows.shape == (2, length) == (2, length_of("image+random", settings))
    assert rows.dtype == torch.float64
    assert torch.equal(rows[:, : length - 496], describe(images))
    black = build_descriptor("image+random", settings, {})(torch.zeros(1, channels, 32, 32))
    assert torch.isfinite(black).all()


def test_random_features_are_the_same_everywhere():
    """Stored figures: whatever changes them makes super models of before wrong."""
    image = torch.linspace(0, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    row = random_features(3, seed=0)(image)[0]
    assert row[[0, 17, 165, 327, 495]].tolist() == pytest.approx(
        [0.875583, 0.292556, 0.338705, 0.115381, 0.075279], rel=1e-4
    )
    assert row.sum().item() == pytest.approx(78.8182, rel=1e-4)


def test_random_features_depend_on_the_seed_alone():
    image = torch.rand(1, 3, 32, 32)
    torch.manual_seed(1)
    first = random_features(3, seed=5)(image)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(random_features(3, seed=5)(image), first)
    assert torch.equal(torch.get_rng_state(), state), "torch's generator is not touched"
    assert not torch.allclose(random_features(3, seed=6)(image), first)


def test_random_features_keep_their_size_from_level_to_level():
    """He's variance: neither dead nor exploding, so that no level drowns in rounding."""
    row = random_features(3, seed=0)(torch.rand(1, 3, 64, 64))[0]
    starts = [0, 34, 100, 232, 496]
    means = [row[a : a + (b - a) // 2].mean().item() for a, b in zip(starts, starts[1:], strict=False)]
    assert all(0.05 < mean < 5 for mean in means), means


@pytest.mark.parametrize("residual_units", [0, 1, 2])
@pytest.mark.parametrize("strides", ["null", "[2,1]"])
def test_encoder_features_are_what_the_whole_network_computes(residual_units, strides):
    """Against hooks in a whole U-Net: the numbers of a level come from its down block's output."""
    overrides = [f"task.unet.residual_units={residual_units}", f"task.unet.strides={strides}"]
    task = small_settings(overrides=overrides).task
    net = build_unet(task).eval()
    seen = []
    blocks = [net.model[0], net.model[1].submodule[0], net.model[1].submodule[1].submodule]
    assert isinstance(blocks[-1], Convolution) == (residual_units == 0)
    for block in blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.flatten(2).double()))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        net(images)
    expected = torch.cat([f(x) for x in seen for f in (lambda x: x.mean(-1), lambda x: x.std(-1, correction=0))], 1)

    weights = encoder_weights(task, net.state_dict())
    rows = encoder_features(task, weights)(images)
    assert rows.shape == (2, 56) == (2, encoder_length(task))
    assert torch.allclose(rows, expected, atol=1e-6)
    down = {f"{i}.{key}": value for i, block in enumerate(blocks) for key, value in block.state_dict().items()}
    assert weights.keys() == down.keys() and all(torch.equal(weights[k], down[k]) for k in down)


def test_encoder_features_know_batch_norm_s_running_statistics():
    """As at inference: an image's numbers do not depend on its batch."""
    task = small_settings(overrides=["task.unet.norm=BATCH"]).task
    net = build_unet(task)
    images = torch.rand(4, 3, 32, 32)
    net.train()(images)
    features = encoder_features(task, encoder_weights(task, net.state_dict()))
    assert torch.allclose(features(images)[:1], features(images[:1]), atol=1e-6)
