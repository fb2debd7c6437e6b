"""How images are shown to people."""

import numpy as np

from fedsm.data.intensity import scale_intensity
from fedsm.super_model.overlay import preview


def test_bytes_are_stretched_as_all_other_numbers_are():
    """By a table of 256 values instead of pixel by pixel, with the same result."""
    rng = np.random.default_rng(0)
    for number in range(300):
        shape = (1, *rng.integers(1, 40, 2), int(rng.choice([1, 3])))
        low = int(rng.integers(0, 200))
        image = rng.integers(low, rng.integers(low + 1, 257), shape).astype(np.uint8)
        if number % 50 == 0:
            image[:] = low
        expected = (scale_intensity(image, "percentiles") * 255).round().astype(np.uint8)
        assert np.array_equal(preview(image, max(shape[1:3])), expected), number


def test_a_shown_image_by_hand():
    """101 values 0, 2, ..., 200: 1 % lie below 2 and 99 % below 198, so 100 becomes 255 * 98 / 196 = 127.5: 128."""
    image = np.arange(0, 202, 2, dtype=np.uint8).reshape(1, 1, 101, 1)
    shown = preview(image, 101)[0, 0, :, 0]
    assert (shown[0], shown[1], shown[50], shown[99], shown[100]) == (0, 0, 128, 255, 255)
