"""Disc and cup from outlines that a reader drew on a copy of the picture (RIGA).

The difference from the untouched picture shows the lines. They divide the picture into outside, rim and cup; every line
pixel then goes to the nearest of the three, so the border runs along the middle of the line however thick it is.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

_THRESHOLDS = (60, 40, 25, 15)  # high ones first: JPEG noise stays below them; faint lines need the low ones
_GAPS = (0, 1, 2, 4)  # pixels by which broken lines are closed


def trace(itk: ModuleType, original: np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The areas inside the outer and the inner outline.

    Args:
        itk: SimpleITK.
        original: (H, W, 3) uint8, without lines.
        drawn: (H, W, 3) uint8, with lines.

    Returns:
        disc and cup (H, W) bool, or None when no two closed outlines are found.
    """
    difference = np.abs(drawn.astype(np.int16) - original).max(axis=-1)
    for threshold in _THRESHOLDS:
        for gap in _GAPS:
            lines = _clean(itk, difference >= threshold, gap)
            if lines.any() and (found := _fill(itk, lines)):
                return found
    return None


def _clean(itk: ModuleType, lines: np.ndarray, gap: int) -> np.ndarray:
    """Closes gaps, then drops specks."""
    image = itk.GetImageFromArray(lines.astype(np.uint8))
    if gap:
        image = itk.BinaryMorphologicalClosing(image, [gap, gap], itk.sitkBall)
    labels = itk.GetArrayFromImage(itk.ConnectedComponent(image, True))
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return (sizes >= max(8, 0.02 * min(lines.shape)))[labels]


def _fill(itk: ModuleType, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    rows, columns = (np.flatnonzero(lines.any(axis=a)) for a in (1, 0))
    window = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    cut = np.pad(lines[window], 1)  # the frame joins everything outside
    labels = itk.GetArrayFromImage(itk.ConnectedComponent(itk.GetImageFromArray((~cut).astype(np.uint8))))
    outside = labels == labels[0, 0]
    sizes = np.bincount(labels[~outside & ~cut], minlength=1)
    enclosed = np.flatnonzero(sizes >= max(8, 0.01 * sizes.sum()))
    if len(enclosed) < 2:
        return None
    cup = np.isin(labels, _cup_labels(itk, labels, enclosed))
    rim = np.isin(labels, enclosed) & ~cup
    if not rim.any() or not cup.any():
        return None
    distances = [_distance(itk, area) for area in (outside, rim, cup)]
    # When the disc's line is open, only something inside it was filled, and the line runs far away from that.
    away = np.minimum(distances[1], distances[2])[cut] > 0.1 * np.sqrt(sizes.sum())
    if away.mean() > 0.3:
        return None
    nearest = np.argmin(distances, axis=0)
    disc_and_cup = np.zeros((2, *lines.shape), bool)
    disc_and_cup[:, *window] = np.stack([nearest > 0, nearest == 2])[:, 1:-1, 1:-1]
    return disc_and_cup[0], disc_and_cup[1]


def _cup_labels(itk: ModuleType, labels: np.ndarray, enclosed: np.ndarray) -> list[int]:
    """The enclosed areas that are cup: those inside the ring of the rim.

    Where the lines touch, the rim is a crescent and encloses nothing: then the roundest area is the cup.
    """
    shapes = itk.LabelShapeStatisticsImageFilter()
    shapes.Execute(itk.GetImageFromArray(labels))
    widest = max(enclosed, key=lambda k: np.prod(shapes.GetBoundingBox(int(k))[2:]))
    ring = itk.BinaryFillhole(itk.GetImageFromArray((labels == widest).astype(np.uint8)))
    covered = np.bincount(labels[itk.GetArrayViewFromImage(ring) > 0], minlength=labels.max() + 1)
    total = np.bincount(labels.ravel())
    inside = [int(k) for k in enclosed if k != widest and covered[k] == total[k]]
    return inside or [max((int(k) for k in enclosed), key=shapes.GetRoundness)]


def _distance(itk: ModuleType, area: np.ndarray) -> np.ndarray:
    image = itk.GetImageFromArray(area.astype(np.uint8))
    return itk.GetArrayFromImage(itk.SignedMaurerDistanceMap(image, False, False, False))
