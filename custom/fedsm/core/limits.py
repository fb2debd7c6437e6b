"""The most that a job may ask of a site. The settings come from the server, and a site checks all of them.

They are far above what any honest job needs. They keep one task from filling a site's memory or disk, from keeping it
busy for ever, and from asking so finely that the answer reveals single images. The limits of single settings are with
their fields, in `settings.py`.
"""

from __future__ import annotations

MONTH = 30 * 24 * 3600  # seconds
MOST_RATE = 1000.0  # of learning
MOST_FACTOR = 1e9  # of `max_share` and `norm_factor`, where that means no limit
MOST_PIXELS = 2**27  # of a batch: 512 images of 512 x 512
MOST_GAMMAS = 50  # two close gammas may differ in the choice for a single image, and so reveal it
MOST_DELTAS = 20  # the same of distances
MOST_DELTA = 1e6
MOST_SHARES = 8  # of the global model, and of `personal_mix`
MOST_TIMES = 1000  # that a job may go on by itself
MOST_SITES = 1000
MOST_ROUND = 10**6
MOST_LOSS = 1e9  # in size, as a site reports it: the ends of float64 overflow in the axes of a figure
MOST_LABELS = 16  # a mask has a value for each combination of labels: 2^16
MOST_CHANNELS = 64
MOST_VALUES = 65536  # of masks, in one label
MASK_VALUES = (-(2**31), 2**31 - 1)
MOST_STEPS = 1000  # that a track takes for one batch
MOST_STEPS_OF_RUN = 10**12  # of noisy training, as a site reports them
MOST_PARAMETERS = 10**9  # of a network: 4 GB; the paper's VGG-11 has 129 million
_SHOWN = 80


def shown(value: object) -> str:
    """A value for a message: short, and without control characters."""
    try:
        text = ascii(value)
    except ValueError:  # a number of more digits than Python writes out
        text = f"a value of type {type(value).__name__} that is too long"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether something is a whole number in [least, most]."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float, most: float) -> bool:
    """Whether something is a number in [least, most]; NaN is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def is_fraction(value: object) -> bool:
    """Whether something that a site sent is a number in [0, 1]; NaN is not."""
    return isinstance(value, float) and 0 <= value <= 1
