"""Reads the contours of an RTSTRUCT onto the grid of its image: a voxel is inside if its centre is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from fedsm.core.task_settings import TaskSettings
from fedsm.data.dicom.label_names import label_of, unknown_labels
from fedsm.data.dicom.segmentation import LabelMasks, add_object, damaged, off_grid
from fedsm.data.dicom.unusable import Unusable

_FINE = 8  # Pillow draws on a grid that much finer, and the centres are looked up: it also fills what a line touches
_BETWEEN = 0.25  # of the distance between slices: a contour that lies so far from a slice belongs to none
_POINTS = 100_000  # of a contour


def add_contours(masks: LabelMasks, path: Path, task: TaskSettings) -> None:
    """Adds the regions of an RTSTRUCT that the task knows.

    Raises:
        Unusable: damaged, off the image's slices, or without such a region.
    """
    add_object(masks, path, task, _add)


def _add(masks: LabelMasks, d: Any, task: TaskSettings) -> None:
    if masks.image.affine is None:
        raise off_grid()
    names = {int(roi.ROINumber): str(roi.get("ROIName") or "") for roi in d.StructureSetROISequence}
    inverse, found = np.linalg.inv(masks.image.affine), False
    for region in d.get("ROIContourSequence") or ():
        label = label_of(names.get(int(region.ReferencedROINumber), ""), None, task)
        if label is None:
            continue
        target, found = masks.start(label), True
        for contour in region.get("ContourSequence") or ():
            if str(contour.ContourGeometricType) in ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR"):
                _fill(target, _voxels(contour, inverse))
    if not found:
        raise Unusable(*unknown_labels(task))
    masks.seen[:] = True


def _voxels(contour: Any, inverse: np.ndarray) -> np.ndarray:
    """The points of a contour as voxels: (points, 3) of column, row and slice."""
    points = np.array(contour.ContourData, float).reshape(-1, 3)
    if not np.isfinite(points).all() or not 3 <= len(points) <= _POINTS:
        raise damaged()
    return points @ inverse[:3, :3].T + inverse[:3, 3]


def _fill(target: np.ndarray, points: np.ndarray) -> None:
    """Inverts what lies inside a contour: one inside another is a hole."""
    level = round(float(points[:, 2].mean()))
    low, high = points[:, :2].min(axis=0), points[:, :2].max(axis=0)
    size = np.array(target.shape[:0:-1])
    if not 0 <= level < len(target) or np.abs(points[:, 2] - level).max() > _BETWEEN:
        raise off_grid()
    if (low < -1).any() or (high > size).any():
        raise off_grid()
    first = np.maximum(np.floor(low), 0).astype(int)
    last = np.minimum(np.ceil(high), size - 1).astype(int)
    width, height = (last - first + 1).tolist()
    canvas = Image.new("1", (width * _FINE, height * _FINE))
    # A voxel's centre has whole numbers; on the fine grid it lies in the middle of its _FINE pixels.
    corners = ((points[:, :2] - first + 0.5) * _FINE - 0.5).ravel().tolist()
    ImageDraw.Draw(canvas).polygon(corners, fill=1)
    inside = np.asarray(canvas)[_FINE // 2 :: _FINE, _FINE // 2 :: _FINE]
    target[level, first[1] : last[1] + 1, first[0] : last[0] + 1] ^= inside
