"""A series as one image: its frames in the order of their positions, and where they lie in the patient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.core.natural_order import natural_key
from fedsm.data.dicom.header import Instance
from fedsm.data.dicom.planes import Plane
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.limits import TooLarge, check_volume

_SAME = 1e-3  # direction cosines and relative spacings that differ by less are the same
_UNEVEN = 0.1  # of the distance between slices: more is a missing slice
_DECODED_BYTES = 8


@dataclass(frozen=True)
class Frame:
    """One frame of a file, and its plane where it has one."""

    instance: Instance
    index: int
    plane: Plane | None


@dataclass(frozen=True)
class DicomImage:
    """What is read as one image: a series with a geometry, or one file of pictures.

    Attributes:
        frames: in the order of their positions along the normal, or in the file's order.
        affine: voxel (column, row, frame) to LPS millimetres; None: pictures without a geometry.
        missing: slices that lack between the first and the last.
    """

    frames: tuple[Frame, ...]
    affine: np.ndarray | None = None
    missing: int = 0

    @property
    def first(self) -> Instance:
        """The file of its first frame."""
        return self.frames[0].instance

    @property
    def files(self) -> list[Path]:
        """Its files, each once."""
        return list(dict.fromkeys(frame.instance.path for frame in self.frames))

    @property
    def path(self) -> Path:
        """The file that stands for it in messages: the first by name."""
        return min(self.files, key=lambda path: natural_key(str(path)))

    @property
    def uid(self) -> str:
        """Names it: a series, or a file of several in a series."""
        return f"{self.first.series}/{min(frame.instance.uid for frame in self.frames)}"

    @property
    def volume(self) -> bool:
        """Whether it has a geometry."""
        return self.affine is not None

    def without(self, bad: set[Path]) -> DicomImage | None:
        """The same without the frames of some files; None if none is left."""
        kept = tuple(frame for frame in self.frames if frame.instance.path not in bad)
        if not kept or len(kept) == len(self.frames):
            return self if kept else None
        return arrange(kept) if self.volume else DicomImage(kept)


def images_of(instances: Iterable[Instance]) -> Iterator[DicomImage | tuple[list[Instance], Unusable]]:
    """The images of a series' files, or the files and what is wrong with them."""
    volumes: list[Instance] = []
    for instance in sorted(instances, key=lambda i: natural_key(str(i.path))):
        if _has_geometry(instance) and instance.frames == 1 and not instance.localizer:
            volumes.append(instance)
        else:  # a file of its own: a picture, a clip, or an enhanced volume
            try:
                yield _of_file(instance)
            except Unusable as e:
                yield [instance], e
    if volumes:
        try:
            yield arrange(tuple(Frame(one, 0, one.planes[0]) for one in volumes))
        except Unusable as e:
            yield volumes, e


def _of_file(instance: Instance) -> DicomImage:
    if instance.localizer and instance.planes:
        raise Unusable("is a localizer", "nothing to do")
    if _has_geometry(instance):
        return arrange(tuple(Frame(instance, i, plane) for i, plane in enumerate(instance.planes)))
    return DicomImage(tuple(Frame(instance, i, None) for i in range(instance.frames)))


def _has_geometry(instance: Instance) -> bool:
    """A colour picture with a position (a screenshot of a viewer) is a picture."""
    return bool(instance.planes) and instance.samples == 1


def arrange(frames: tuple[Frame, ...]) -> DicomImage:
    """Frames with a plane as a volume, in the order of their positions along the normal.

    Raises:
        Unusable: they are not slices of one volume.
    """
    first = frames[0]
    along, spacing = _orientation(first), np.array(_plane(first).spacing)
    for frame in frames:
        if (frame.instance.rows, frame.instance.columns) != (first.instance.rows, first.instance.columns):
            raise Unusable("has slices of different sizes", "export each volume as a series of its own")
        if not np.allclose(_orientation(frame), along, atol=_SAME) or not np.allclose(
            _plane(frame).spacing, spacing, rtol=_SAME
        ):
            raise Unusable("has slices of different orientations or spacings", "export each volume as its own series")
    try:
        check_volume([first.instance.columns, first.instance.rows, len(frames), first.instance.samples], _DECODED_BYTES)
    except TooLarge as e:
        raise Unusable(str(e), "export a part of it") from e
    normal = np.cross(along[:3], along[3:])
    heights = np.array([normal @ _plane(frame).position for frame in frames])
    order = np.argsort(heights, kind="stable")
    frames, heights = tuple(frames[i] for i in order), heights[order]
    positions = np.array([_plane(frame).position for frame in frames])
    thickness = _plane(first).thickness or 1.0
    step, missing = normal * thickness, 0
    if len(frames) > 1:
        steps = np.diff(heights)
        usual = float(steps.min())  # where many slices are missing, most steps are larger
        if usual < max(1e-4, _SAME * float(np.median(steps))):
            raise Unusable(
                "has several slices at one position (echoes, times or diffusion weights)",
                "export each volume as a series of its own, and each image once",
            )
        counts = np.maximum(1, np.round(steps / usual))
        if np.abs(steps - counts * usual).max() > _UNEVEN * usual:
            raise Unusable("has slices at uneven distances", "export it again with all its slices")
        missing = int(counts.sum()) - len(steps)
        step = (positions[-1] - positions[0]) / counts.sum()
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = along[:3] * spacing[1], along[3:] * spacing[0]
    affine[:3, 2], affine[:3, 3] = step, positions[0]
    return DicomImage(frames, affine, missing)


def by_series(instances: Iterable[Instance]) -> dict[str, list[Instance]]:
    """The files of each series."""
    series: dict[str, list[Instance]] = defaultdict(list)
    for instance in instances:
        series[instance.series].append(instance)
    return series


def _plane(frame: Frame) -> Plane:
    assert frame.plane is not None
    return frame.plane


def _orientation(frame: Frame) -> np.ndarray:
    return np.array(_plane(frame).orientation)
