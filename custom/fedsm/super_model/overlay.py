"""A picture of a prediction: the image with the outlines of its labels."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedsm.data.contact_sheet import COLOURS, outline
from fedsm.data.intensity import scale_intensity

LONGEST = 2048  # pixels of a picture's longer side
TILE = 384  # the same of a volume's slice
_TILES = 12  # slices of a volume that are shown
_COLUMNS = 4


def preview(image: np.ndarray, longest: int) -> np.ndarray:
    """An image (slices, H, W, C) for people: grey or RGB uint8, its longer side `longest` pixels.

    Brightness is stretched, so that dark images can be seen.
    """
    if image.shape[-1] != 3:
        image = image[..., :1]
    size = tuple(max(1, round(side * longest / max(image.shape[1:3]))) for side in image.shape[1:3])
    if image.dtype == np.uint8:  # first smaller, then stretched: a picture may have 100 million pixels
        return _stretch(np.stack([_resize(part, size) for part in image]))
    return np.stack([_resize(part, size) for part in _stretch(image)])


def draw_overlay(shown: np.ndarray, labels: np.ndarray) -> Image.Image:
    """Outlines of labels (L, slices, H, W) over a preview (slices, h, w, C).

    Of a volume up to 12 slices with a label are shown, evenly chosen; if none has a label, up to 12 of all slices.
    """
    rows = np.flatnonzero(labels.any(axis=(0, 2, 3)))
    rows = rows if len(rows) else np.arange(len(shown))
    rows = rows[np.linspace(0, len(rows) - 1, min(_TILES, len(rows))).round().astype(int)]
    tiles = [_outlined(shown[row], labels[:, row]) for row in rows]
    columns = min(_COLUMNS, len(tiles))
    height, width = tiles[0].shape[:2]
    sheet = np.zeros((-(-len(tiles) // columns) * height, columns * width, 3), np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height, number % columns * width
        sheet[y : y + height, x : x + width] = tile
    return Image.fromarray(sheet)


def _outlined(picture: np.ndarray, labels: np.ndarray) -> np.ndarray:
    shown = np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture.copy()
    size = (shown.shape[1], shown.shape[0])
    resized = [np.asarray(Image.fromarray(label).resize(size, Image.Resampling.NEAREST)) for label in labels]
    thick = max(size) > 768  # a line of one pixel cannot be seen on a large picture
    for label in resized:
        shown[line(~label, thick)] //= 3  # a dark rim, so that the line can be seen on white as well
    for i, label in enumerate(resized):
        shown[line(label, thick)] = COLOURS[i % len(COLOURS)]
    return shown


def line(mask: np.ndarray, thick: bool) -> np.ndarray:
    """The outline of a mask (h, w), on its inner side: one pixel wide, or two."""
    thin = outline(mask)
    return thin | outline(mask & ~thin) if thick else thin


def _stretch(image: np.ndarray) -> np.ndarray:
    if image.dtype == np.uint8:
        return _stretched_bytes(image)
    return (scale_intensity(image, "percentiles") * 255).round().astype(np.uint8)


def _stretched_bytes(image: np.ndarray) -> np.ndarray:
    """The same of bytes, by what becomes of each of the 256 values: a tenth of the time."""
    counts = np.bincount(image.ravel(), minlength=256)
    low, high = _percentile(counts, 0.01), _percentile(counts, 0.99)
    values = np.clip((np.arange(256, dtype=np.float32) - low) / max(float(high - low), 1e-6), 0, 1).astype(np.float32)
    return (values * 255).round().astype(np.uint8)[image]


def _percentile(counts: np.ndarray, part: float) -> np.float64:
    """The value below which this part of all values lies, between its neighbours as `np.percentile` has it."""
    ends, rank = counts.cumsum(), (counts.sum() - 1) * part
    below, above = (float(np.searchsorted(ends, int(rank) + step, side="right")) for step in (0, 1))
    above = min(above, float(np.flatnonzero(counts)[-1]))
    t = rank - int(rank)
    return np.float64(above - (above - below) * (1 - t) if t >= 0.5 else below + (above - below) * t)


def _resize(part: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if part.shape[:2] == tuple(size):
        return part
    picture = Image.fromarray(part if part.shape[-1] == 3 else part[..., 0])
    resized = np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return resized if resized.ndim == 3 else resized[..., None]
