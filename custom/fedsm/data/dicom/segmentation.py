"""Reads DICOM-SEG onto the grid of its image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedsm.core.task_settings import TaskSettings
from fedsm.data.dicom.header import LABELMAP, open_file
from fedsm.data.dicom.label_names import label_of, unknown_labels
from fedsm.data.dicom.planes import Plane, group_of, planes_of
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.unusable import Unusable

_MOST_SHIFT = 0.25  # voxels by which a mask's frame may lie beside its image's


def damaged() -> Unusable:
    """A mask that is malformed."""
    return Unusable("is a mask that cannot be read", "export it again")


def off_grid() -> Unusable:
    """A mask whose pixels do not lie on its image's."""
    return Unusable("is a mask that is not on its image's grid", "resample the mask to it")


class LabelMasks:
    """The masks of an image.

    Attributes:
        labels: label -> (frames, H, W) bool, in the order of `image.frames`.
        seen: (frames,) bool: frames of which the masks say something, if only that they are empty.
    """

    def __init__(self, image: DicomImage):
        self.image = image
        self.labels: dict[str, np.ndarray] = {}
        self.seen = np.zeros(len(image.frames), bool)

    def start(self, label: str) -> np.ndarray:
        """An empty mask for a label.

        Raises:
            Unusable: another mask has this label already.
        """
        if label in self.labels:
            raise Unusable("has a label that another mask of its image has too", "keep one of the masks")
        first = self.image.first
        self.labels[label] = np.zeros((len(self.image.frames), first.rows, first.columns), bool)
        return self.labels[label]


def add_segmentation(masks: LabelMasks, path: Path, task: TaskSettings) -> None:
    """Adds the segments of a DICOM-SEG that the task knows.

    Raises:
        Unusable: damaged, off the grid, or without such a segment.
    """
    add_object(masks, path, task, _add)


def add_object(
    masks: LabelMasks, path: Path, task: TaskSettings, add: Callable[[LabelMasks, Any, TaskSettings], None]
) -> None:
    """Adds what `add` finds in a DICOM object.

    Raises:
        Unusable: what `add` says, or the object is malformed.
    """
    dataset = open_file(path)
    try:
        add(masks, dataset, task)
    except Unusable:
        raise
    except Exception as e:  # malformed in any of many ways
        raise damaged() from e


def _add(masks: LabelMasks, d: Any, task: TaskSettings) -> None:
    known = {}
    for segment in d.SegmentSequence:
        kind = (segment.get("SegmentedPropertyTypeCodeSequence") or [{}])[0]
        code = (str(kind.get("CodeValue", "")), str(kind.get("CodingSchemeDesignator", "")))
        if label := label_of(str(segment.get("SegmentLabel") or ""), code, task):
            known[int(segment.SegmentNumber)] = masks.start(label)
    if not known:
        raise Unusable(*unknown_labels(task))
    frames = np.asarray(d.pixel_array).reshape(-1, int(d.Rows), int(d.Columns))
    groups = d.PerFrameFunctionalGroupsSequence
    planes = planes_of(d, len(frames)) if masks.image.volume else ()
    if len(groups) != len(frames) or (masks.image.volume and not planes):
        raise damaged()
    shared = (d.get("SharedFunctionalGroupsSequence") or [None])[0]
    labelmap = str(d.SOPClassUID) == LABELMAP or str(d.SegmentationType) == "LABELMAP"
    half = int(d.get("MaximumFractionalValue") or 1) / 2 if str(d.SegmentationType) == "FRACTIONAL" else 0
    for number, (pixels, group) in enumerate(zip(frames, groups, strict=True)):
        if labelmap:
            parts = {segment: pixels == segment for segment in known}
        else:
            segment = int(group_of(group, shared, "SegmentIdentificationSequence").ReferencedSegmentNumber)
            parts = {segment: pixels > half} if segment in known else {}
        for segment, part in parts.items():
            if masks.image.volume:
                place(known[segment], part, planes[number], masks)
            else:
                _place_picture(known[segment], part, (group, shared), masks)


def place(target: np.ndarray, part: np.ndarray, plane: Plane, masks: LabelMasks) -> None:
    """Adds a frame to a mask where it lies in the image, turned or flipped if need be.

    Raises:
        Unusable: its pixels do not lie on the image's voxels.
    """
    affine = masks.image.affine
    assert affine is not None
    along, spacing = np.array(plane.orientation), plane.spacing
    own = np.stack([along[:3] * spacing[1], along[3:] * spacing[0], plane.position], axis=1)
    inverse = np.linalg.inv(affine)
    turn, shift = inverse[:3, :3] @ own[:, :2], inverse[:3, :3] @ own[:, 2] + inverse[:3, 3]
    whole, at = np.round(turn), np.round(shift)
    drift = np.abs(turn - whole).max() * max(part.shape) + np.abs(shift - at).max()
    if drift > _MOST_SHIFT or (np.abs(whole).sum(axis=0) != 1).any() or (np.abs(whole).sum(axis=1) > 1).any():
        raise off_grid()
    rows, columns = np.nonzero(part)
    voxels = (whole @ np.stack([columns, rows]) + at[:, None]).astype(int)
    size = target.shape[::-1]
    if any((values < 0).any() or (values >= n).any() for values, n in zip(voxels, size, strict=True)):
        raise off_grid()
    target[voxels[2], voxels[1], voxels[0]] = True
    masks.seen[:] = True


def _place_picture(target: np.ndarray, part: np.ndarray, groups: tuple[Any, Any], masks: LabelMasks) -> None:
    """Adds a frame to the picture that it says it was drawn on."""
    if part.shape != target.shape[1:]:
        raise off_grid()
    number = 1
    for source in group_of(*groups, "DerivationImageSequence").get("SourceImageSequence") or ():
        if str(source.get("ReferencedSOPInstanceUID")) == masks.image.first.uid:
            number = int(source.get("ReferencedFrameNumber") or 1)
    if not 1 <= number <= len(target):
        raise damaged()
    target[number - 1] |= part
    masks.seen[number - 1] = True
