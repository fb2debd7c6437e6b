"""Augmentation of batches."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.task_settings import AugmentSettings
from fedsm.data.augment import augment_batch
from tests.helpers.small_jobs import small_settings


def batch(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    images = torch.rand(count, 3, 32, 32)
    return images, (images[:, :2] > 0.5).float()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nothing_asked_nothing_done():
    images, labels = batch()
    assert augment_batch(images, labels, AugmentSettings(), generator())[0] is images


def test_horizontal_flip_is_exact_and_takes_the_labels_along():
    images, labels = batch(16)
    new, new_labels = augment_batch(images, labels, AugmentSettings.from_dict({"flip": "horizontal"}), generator())
    flipped = 0
    for i in range(16):
        turned = torch.allclose(new[i], images[i].flip(-1), atol=1e-5)
        assert turned or torch.allclose(new[i], images[i], atol=1e-5)
        assert torch.equal(new_labels[i], labels[i].flip(-1) if turned else labels[i])
        flipped += turned
    assert 0 < flipped < 16


def test_all_together_stays_in_range_and_is_fixed_by_the_generator():
    images, labels = batch()
    options = AugmentSettings(flip="both", rotate=20, scale=0.2, intensity=0.3)
    new, new_labels = augment_batch(images, labels, options, generator(3))
    assert new.shape == images.shape and new.min() >= 0 and new.max() <= 1
    assert set(new_labels.unique().tolist()) <= {0.0, 1.0}
    again = augment_batch(images, labels, options, generator(3))
    assert torch.equal(new, again[0]) and torch.equal(new_labels, again[1])
    assert not torch.equal(new, augment_batch(images, labels, options, generator(4))[0])


def test_image_and_labels_move_together():
    """A white square and its mask: after any rotation and zoom the mask still covers the white."""
    images, labels = torch.zeros(8, 3, 64, 64), torch.zeros(8, 1, 64, 64)
    images[:, :, 20:40, 24:44] = 1
    labels[:, :, 20:40, 24:44] = 1
    new, mask = augment_batch(
        images, labels, AugmentSettings.from_dict({"flip": "both", "rotate": 30, "scale": 0.2}), generator()
    )
    both = ((new[:, :1] > 0.5) & (mask > 0)).sum((1, 2, 3))
    either = ((new[:, :1] > 0.5) | (mask > 0)).sum((1, 2, 3))
    assert (both / either > 0.9).all()


def test_a_flipped_and_rotated_square_stays_a_square():
    """Flip, rotation and zoom of 1 keep areas: a shear would not."""
    images, labels = torch.zeros(16, 1, 64, 64), torch.zeros(16, 1, 64, 64)
    labels[:, :, 22:42, 22:42] = 1
    _, mask = augment_batch(images, labels, AugmentSettings.from_dict({"flip": "both", "rotate": 40}), generator())
    assert (mask.sum((1, 2, 3)) / 400 - 1).abs().max() < 0.05


@pytest.mark.parametrize("augment", ["{spin: 3}", "{flip: sideways}", "{rotate: -1}", "{scale: big}"])
def test_bad_settings_are_refused(augment):
    with pytest.raises(UserError, match="augment"):
        small_settings(overrides=[f"task.augment={augment}"])
