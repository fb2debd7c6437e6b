"""Directions of length 1; at step 0 the loss is the model's own."""

import pytest
import torch
from monai.losses import DiceLoss

from fedsm.evaluation.loss_surface import loss_surface, norm_of, unit_directions
from fedsm.nets import build_unet
from tests.helpers.small_jobs import small_settings


def test_directions_have_unit_length_over_all_weights():
    weights = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    directions = unit_directions(weights, seed=0)
    assert len(directions) == 10
    assert [norm_of(d) for d in directions] == pytest.approx([1.0] * 10, abs=1e-6)
    assert torch.equal(unit_directions(weights, seed=0)[3]["a"], directions[3]["a"])
    assert not torch.equal(directions[0]["b"], directions[1]["b"])


def test_surface_passes_through_the_model():
    task = small_settings().task
    torch.manual_seed(0)
    net, images = build_unet(task).eval(), torch.rand(2, 3, 32, 32)
    labels = (torch.rand(2, 2, 32, 32) > 0.5).to(torch.uint8)
    seen, batches = [], [(images, labels), (images[:1], labels[:1])]
    directions = unit_directions(net.state_dict(), seed=0)
    surfaces = loss_surface(task, net.state_dict(), batches, [-2.0, 0.0, 2.0], directions, lambda: seen.append(1))
    assert len(surfaces) == 2 and len(seen) == 60
    for losses, (x, y) in zip(surfaces, batches, strict=True):
        with torch.no_grad():
            own = DiceLoss(sigmoid=True)(net(x), y.float()).item()
        assert losses.shape == (10, 3)
        assert losses[:, 1].tolist() == pytest.approx([own] * 10, abs=1e-6)
        assert (losses[:, 0] != losses[:, 1]).all()
