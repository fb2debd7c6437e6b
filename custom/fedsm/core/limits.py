"""The most that a job may ask of a site. The settings come from the server, and a site believes nobody's numbers.

They are far above what any honest job needs: they are there so that one task cannot fill a site's memory or disk, keep
it busy for ever, or ask so finely that the answer tells of single images.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fedsm.core.errors import UserError

_MONTH = 30 * 24 * 3600  # seconds
# The least and the most that whole numbers of a job may be.
WHOLE = {
    "rounds": (1, 100_000), "local_epochs": (1, 1000), "batch_size": (1, 4096), "size": (32, 8192),
    "min_sites": (1, 1000), "round_timeout": (1, _MONTH), "evaluate_timeout": (1, _MONTH), "absent_wait": (1, _MONTH),
    "max_images": (1, 10**9), "keep_checkpoints": (1, 1000), "round_retries": (0, 1000),
}  # fmt: skip
MOST_RATE = 1000.0  # of learning
MOST_FACTOR = 1e9  # of `max_share` and `norm_factor`, where that means no limit
MOST_PIXELS = 2**27  # of a batch: 512 images of 512 x 512
MOST_GAMMAS = 50  # between two gammas that are close, a single image changes sides
MOST_SITES = 1000
MOST_ROUND = 10**6
MOST_LABELS = 16  # a mask has a value for each combination of labels: 2^16
MOST_CHANNELS = 64
MOST_VALUES = 65536  # of masks, in one label
MASK_VALUES = (-(2**31), 2**31 - 1)
MOST_STEPS = 1000  # that a track takes for one batch
MOST_PARAMETERS = 10**9  # of a network: 4 GB; the paper's VGG-11 has 129 million
_MOST_LEVELS, _MOST_WIDTH, _MOST_STRIDE, _MOST_UNITS, _MOST_FACTOR = 12, 4096, 16, 16, 4.0
_MOST_TURN, _MOST_CHANGE = 360, 10
# It is shown, written to tables, and put into configurations of which MONAI takes `$...` for a program.
_LABEL = re.compile(r"[^\W_][\w .()-]{0,63}")
_SHOWN = 80


def shown(value: object) -> str:
    """A value in a message: short, and without characters that terminals obey."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether something is a whole number in [least, most]."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object, least: float, most: float) -> bool:
    """Whether something is a number in [least, most]; NaN is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def check_whole(values: dict[str, Any]) -> None:
    """Refuses whole numbers of a job that are out of range, and batches that are too large.

    Args:
        values: name -> value of each of `WHOLE`.

    Raises:
        UserError: naming the setting.
    """
    for name, (least, most) in WHOLE.items():
        value = values[name]
        if not is_whole(value, least, math.inf):
            raise UserError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
        if value > most:
            raise _too_much(f"{name} must be at most {most}, got {shown(value)}")
    pixels = values["batch_size"] * values["size"] ** 2
    if pixels > MOST_PIXELS:
        raise _too_much(
            f"batches of {values['batch_size']} images of {values['size']} x {values['size']} have {pixels} pixels, the"
            f" limit is {MOST_PIXELS}: a smaller batch_size or size"
        )


def check_labels(labels: dict, background: list, where: str) -> None:
    """Refuses labels that cannot be shown, or too many of them or of their values.

    Raises:
        UserError: naming the label.
    """
    if len(labels) > MOST_LABELS:
        raise _too_much(f"{where}: {len(labels)} labels, the limit is {MOST_LABELS}")
    for label in labels:
        if not isinstance(label, str):
            raise UserError(f"{where}: the names of labels must be text; put them in quotes")
        if not _LABEL.fullmatch(label):
            raise UserError(
                f"{where}: {shown(label)} is no name of a label: a letter or digit first, then letters, digits, blanks"
                " and _ . ( ) -, 64 at most",
                public="the job has a label with a name that cannot be",
            )
    for label, values in [*labels.items(), ("background", background)]:
        fits = isinstance(values, list) and 0 < len(values) <= MOST_VALUES
        if not fits or not all(is_whole(v, *MASK_VALUES) for v in values):
            raise UserError(f"{where}: label {label!r} must be a list of mask values, got {shown(values)}")


def check_networks(unet: dict, selector_net: dict, where: str) -> None:
    """Refuses settings of networks that are no numbers, or too large. Unknown ones are found when they are built.

    Raises:
        UserError: naming the setting.
    """
    channels, strides = unet.get("channels"), unet.get("strides")
    if channels is not None and not _is_list(channels, 2, _MOST_LEVELS, _MOST_WIDTH):
        raise _too_much(
            f"{where}: unet.channels must be 2 to {_MOST_LEVELS} whole numbers from 1 to {_MOST_WIDTH},"
            f" got {shown(channels)}"
        )
    if strides and not _is_list(strides, 1, _MOST_LEVELS, _MOST_STRIDE):
        raise _too_much(f"{where}: unet.strides must be whole numbers from 1 to {_MOST_STRIDE}, got {shown(strides)}")
    if not is_whole(units := unet.get("residual_units", 0), 0, _MOST_UNITS):
        raise _too_much(f"{where}: unet.residual_units must be a whole number up to {_MOST_UNITS}, got {shown(units)}")
    if not is_number(width := selector_net.get("width", 1.0), 0, _MOST_FACTOR) or width == 0:
        raise _too_much(f"{where}: selector_net.width must be above 0, at most {_MOST_FACTOR:g}, got {shown(width)}")


def check_augment(options: dict, where: str) -> None:
    """Refuses unknown or impossible options of augmentation.

    Raises:
        UserError: naming the option.
    """
    known = {"flip": 0, "rotate": _MOST_TURN, "scale": _MOST_CHANGE, "intensity": _MOST_CHANGE}
    for key, value in options.items():
        if key not in known:
            raise UserError(f"{where}: unknown augment setting {key!r}; known: {', '.join(known)}")
        if key == "flip":
            if value not in ("none", "horizontal", "both"):
                raise UserError(f"{where}: augment.flip must be none, horizontal or both, got {shown(value)}")
        elif not is_number(value, 0, math.inf):
            raise UserError(f"{where}: augment.{key} must be a number of at least 0, got {shown(value)}")
        elif value > known[key]:
            raise UserError(f"{where}: augment.{key} must be at most {known[key]}, got {shown(value)}")


def _is_list(values: object, shortest: int, longest: int, most: int) -> bool:
    fits = isinstance(values, (list, tuple)) and shortest <= len(values) <= longest
    return fits and all(is_whole(v, 1, most) for v in values)


def _too_much(message: str) -> UserError:
    """One whose words name nothing of the site's: the server may read them."""
    return UserError(message, public=message)


def is_fraction(value) -> bool:
    """Whether something that a site sent is a number in [0, 1]; NaN is not."""
    return isinstance(value, float) and 0 <= value <= 1
