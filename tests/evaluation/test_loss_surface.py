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
    seen = []
    losses = loss_surface(task, net.state_dict(), (images, labels), [-2.0, 0.0, 2.0], 0, lambda: seen.append(1))
    with torch.no_grad():
        own = DiceLoss(sigmoid=True)(net(images), labels.float()).item()
    assert losses.shape == (10, 3) and len(seen) == 30
    assert losses[:, 1].tolist() == pytest.approx([own] * 10, abs=1e-6)
    assert (losses[:, 0] != losses[:, 1]).all()
