"""Where the frames of a file lie in the patient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsm.data.dicom.unusable import Unusable


@dataclass(frozen=True)
class Plane:
    """Where a frame lies: direction of its rows and columns, its first pixel (LPS, mm), and mm to the next row and
    column. `thickness` is that of the slice, 0 if unknown."""

    orientation: tuple[float, ...]
    position: tuple[float, ...]
    spacing: tuple[float, float]
    thickness: float


def planes_of(d: Any, frames: int) -> tuple[Plane, ...]:
    """The planes of all frames; none if one of them has none."""
    shared = (d.get("SharedFunctionalGroupsSequence") or [None])[0]
    each = d.get("PerFrameFunctionalGroupsSequence") or [None] * frames
    if frames == 1 and each == [None] and "ImagePositionPatient" in d:
        found = [_plane(d, d, d)]
    elif shared is not None and len(each) == frames:
        groups = ("PlaneOrientationSequence", "PlanePositionSequence", "PixelMeasuresSequence")
        found = [_plane(*(group_of(frame, shared, name) for name in groups)) for frame in each]
    else:
        return ()
    return tuple(plane for plane in found if plane) if all(found) else ()


def group_of(frame: Any, shared: Any, name: str) -> Any:
    """A functional group of a frame: its own, or the one that all frames share; empty if there is none."""
    for holder in (frame, shared):
        if holder is not None and holder.get(name):
            return holder[name].value[0]
    return {}


def _plane(orientation: Any, position: Any, measures: Any) -> Plane | None:
    along, first = orientation.get("ImageOrientationPatient"), position.get("ImagePositionPatient")
    spacing = measures.get("PixelSpacing")
    if not along or not first or not spacing:
        return None
    thickness = measures.get("SpacingBetweenSlices") or measures.get("SliceThickness") or 0
    values = np.array([*along, *first, *spacing, thickness], float)
    if values.shape != (12,) or not np.isfinite(values).all() or (values[9:11] <= 0).any():
        raise Unusable("has a geometry that cannot be used", "export it again")
    row, column = values[:3], values[3:6]
    if abs(np.linalg.norm(row) - 1) > 1e-2 or abs(np.linalg.norm(column) - 1) > 1e-2 or abs(row @ column) > 1e-2:
        raise Unusable("has a geometry that cannot be used", "export it again")
    plain = values.tolist()
    return Plane(tuple(plain[:6]), tuple(plain[6:9]), (plain[9], plain[10]), abs(plain[11]))
