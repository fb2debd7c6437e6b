"""Checks a site's files one by one: every problem becomes a note (kind -> files), never an exception."""

from __future__ import annotations

import errno
import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.natural_order import natural_key
from fedsm.core.task_settings import TaskSettings
from fedsm.core.text import printable
from fedsm.data.findings import Notes, name_of
from fedsm.data.intensity import IntensityError, scale_intensity
from fedsm.data.limits import open_picture
from fedsm.data.readers import PICTURES, VOLUMES, grid_difference, has_colours, is_supported, read, stem, suffix
from fedsm.data.site_folder import Pair, match_channels, size_text

_DARK, _BRIGHT = 0.02, 0.98  # of the format's range


@dataclass
class Seen:
    """What is kept of a pair after its pixels were dropped."""

    image: str
    mask: str
    shape: tuple[int, int, int]
    counts: dict[float, int]
    quantiles: tuple[float, float, float]


def find_pairs(folder: Path, notes: Notes) -> list[Pair]:
    """As `list_pairs`, but notes every problem and returns the pairs that it finds."""
    files: dict[str, dict[str, Path]] = {"images": {}, "masks": {}}
    for part, found in files.items():
        try:
            paths = sorted((folder / part).iterdir())
        except OSError as e:
            notes["folder"].append(f"{part}/ ({e.strerror})")
            continue
        for path in (p for p in paths if not p.name.startswith(".")):
            if not is_supported(path):
                notes["passed over"].append(name_of(path))
            elif stem(path) in found:
                notes["twins"].append(f"{name_of(found[stem(path)])} and {printable(path.name)}")
            else:
                found[stem(path)] = path
    images, masks = files.values()
    if not images and not masks:
        notes["no images"].append("images/")
    notes["no mask"] += [name_of(images[s]) for s in images if s not in masks]
    notes["no image"] += [name_of(masks[s]) for s in masks if s not in images]
    return [Pair(s, images[s], masks[s]) for s in sorted(images, key=natural_key) if s in masks]


def _load(path: Path, site: str, notes: Notes, mask: bool = False) -> np.ndarray | None:
    try:
        info = path.stat()
    except OSError as e:
        reason = "symbolic link that leads to itself" if e.errno == errno.ELOOP else e.strerror
        notes["no file"].append(f"{name_of(path)} ({reason})")
        return None
    if not stat.S_ISREG(info.st_mode):  # a folder, or a pipe: reading it would wait for ever
        notes["no file"].append(name_of(path))
        return None
    try:
        array = read(path, site, mask)
        if array.dtype.kind not in "buif":
            raise UserError(f"voxels of type {array.dtype}")
    except UserError as e:
        reason = str(e.__cause__ or e.message).splitlines()[0].replace(str(path), path.name)
        notes["unreadable"].append(f"{name_of(path)} ({printable(reason) if info.st_size else '0 bytes'})")
        return None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        notes["not finite"].append(name_of(path))
        return None
    if suffix(path) in PICTURES:
        with open_picture(path) as picture:  # the header only
            form = (picture.format or "").replace("MPO", "JPEG")
            if mask and form == "GIF" and picture.mode == "P" and has_colours(picture):
                notes["palette"].append(name_of(path))
        if form != Image.registered_extensions().get(suffix(path)):
            notes["format"].append(f"{name_of(path)} ({form})")
    return array


def load_pair(pair: Pair, site: str, task: TaskSettings, notes: Notes) -> tuple[np.ndarray, np.ndarray] | None:
    """As `read_pair`, but notes every problem; None if the pair cannot be used.

    Unknown mask values are only noted: the pair can still be looked at.
    """
    image, mask = _load(pair.image, site, notes), _load(pair.mask, site, notes, mask=True)
    if image is not None:
        try:
            image = match_channels(image, task, pair.image, site)
        except UserError:
            notes["channels"].append(f"{name_of(pair.image)} ({image.shape[-1]})")
            image = None
    if mask is not None:
        colours = mask[..., :3] if mask.shape[-1] != 2 else mask[..., :1]  # without alpha
        mask = mask[..., 0]
        if (colours != mask[..., None]).any():
            notes["colour"].append(name_of(pair.mask))
            mask = None
    if image is None or mask is None:
        return None
    if image.shape[:3] != mask.shape:
        notes["size"].append(f"{name_of(pair.image)} ({size_text(image)}; mask {size_text(mask)})")
        return None
    volumes = [suffix(path) in VOLUMES for path in (pair.image, pair.mask)]
    if all(volumes):
        apart = grid_difference(pair.image, pair.mask)
        if apart:
            notes["grid"].append(f"{name_of(pair.mask)} ({apart})")
    elif any(volumes):
        notes["mixed"].append(name_of(pair.mask))
    return image, mask


def _hash(array: np.ndarray) -> str:
    return hashlib.blake2b(repr((array.shape, array.dtype.str)).encode() + array.tobytes(), digest_size=16).hexdigest()


def look_at(pair: Pair, site: str, task: TaskSettings, notes: Notes) -> Seen | None:
    loaded = load_pair(pair, site, task, notes)
    if loaded is None:
        return None
    image, mask = loaded
    values, counts = np.unique(mask, return_counts=True)
    known = sorted(task.mask_values)
    if wrong := sorted(set(values.tolist()) - set(known)):
        found = ", ".join(f"{v:g}" for v in wrong[:3])
        notes["values"].append(f"{name_of(pair.mask)} ({found}; the task knows {', '.join(map(str, known))})")
    elif set(values.tolist()) <= set(task.background):
        notes["empty"].append(name_of(pair.mask))
    try:
        quantiles = _look_at_range(image, name_of(pair.image), task, notes)
    except IntensityError as e:
        notes["range"].append(f"{name_of(pair.image)} ({e.message})")
        return None
    pixels = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return Seen(_hash(image), _hash(mask), mask.shape, pixels, quantiles)


def _look_at_range(image: np.ndarray, name: str, task: TaskSettings, notes: Notes) -> tuple[float, float, float]:
    """1 %, 50 % and 99 % of the pixels, in 0..1 where the task divides by the format's range."""
    unit = task.intensity == "unit"
    pixels = (scale_intensity(image, "unit") if unit else image).reshape(-1, image.shape[-1])
    low, middle, high = np.percentile(pixels[:: max(1, len(pixels) // 100_000)], (1, 50, 99)).tolist()
    if image.min() == image.max() or (low == high and not unit):
        notes["constant"].append(name)
    elif unit and image.dtype == np.uint16 and image.max() <= 255:
        notes["8 bit"].append(name)
    elif unit and high < _DARK:
        notes["dark"].append(name)
    elif unit and low > _BRIGHT:
        notes["bright"].append(name)
    return low, middle, high
