"""A DICOM image as an input of prediction: a series in, a DICOM-SEG out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.private_files import new_file
from fedsm.core.task_settings import TaskSettings
from fedsm.data.dicom.capture import write_capture
from fedsm.data.dicom.header import ENDINGS
from fedsm.data.dicom.image import Loaded, affine_of, load, reader_frames
from fedsm.data.dicom.scan import OTHER, scan
from fedsm.data.dicom.seg_file import make_seg
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.labels import decompose
from fedsm.data.site_folder import check_image
from fedsm.data.sources import Opened, Origin, SliceName, Source
from fedsm.data.writers import on_grid, slice_pixel_area


@dataclass(frozen=True, eq=False)
class SeriesSource(Source):
    """A series, or a file of pictures."""

    has_record = True
    image: DicomImage
    path: Path

    def read(self, task: TaskSettings) -> Opened:
        try:
            loaded = load(self.image)
        except Unusable as e:
            raise UserError(e.reason, file=self.path, remedy=e.remedy) from e
        return _OpenedSeries(loaded, check_image(loaded.array, task, self.path, None))

    def mask_name(self, below: Path, dtype: np.dtype) -> str:
        return below.name


class _OpenedSeries(Opened):
    def __init__(self, loaded: Loaded, array: np.ndarray):
        self._image, self.array = loaded.image, array
        self.numbered = loaded.image.volume or len(array) > 1
        self.area = slice_pixel_area(affine_of(loaded.image)) if loaded.image.volume else None
        self.problems = [UserError(why.reason, file=path, remedy=why.remedy) for path, why in loaded.bad]

    def write_mask(self, path: Path, mask: np.ndarray, origin: Origin) -> None:
        try:
            seg_of(self._image, mask, origin).save_as(new_file(path))
        except Unusable as e:
            raise UserError(e.reason, file=self._image.path, remedy=e.remedy) from e

    def write_capture(self, path: Path, picture: Image.Image, origin: Origin) -> None:
        write_capture(path, picture, self._image, origin)

    def slice_names(self) -> Sequence[SliceName]:
        frames = reader_frames(self._image)
        if frames is None:
            return [SliceName(self._image.first.series)] * len(self.array)
        return [SliceName(frame.instance.series, frame.instance.uid) for frame in frames]


def seg_of(image: DicomImage, mask: np.ndarray, origin: Origin) -> Any:
    """The DICOM-SEG of a mask (slices, H, W) in the order and orientation in which the image was read.

    Raises:
        Unusable: the image's header is such that none can be made.
    """
    if image.volume:
        mask = on_grid(mask, affine_of(image)).transpose(2, 1, 0)
    return make_seg(decompose(mask, origin.task), image, origin)


def list_sources(paths: Sequence[Path], named: set[Path], base: Path) -> tuple[dict[Source, Path], list[UserError]]:
    """The images in some DICOM files.

    Args:
        paths: the files.
        named: those that were asked for by their names: one without an image is then a problem.
        base: the folder that all inputs share.

    Returns:
        source -> the name of its mask, as a path below `base`; and what cannot be used.
    """
    found = scan(paths)
    problems = [
        UserError(one.reason + (f" (a series of {one.files} files)" if one.files > 1 else ""), file=one.path,
                  remedy=one.remedy)
        for one in found.problems if one.kind != OTHER or one.path in named
    ]  # fmt: skip
    below: dict[Source, Path] = {}
    counts = defaultdict[Path, int](int)
    for image in found.images:
        name = _name(image, base)
        counts[name] += 1
        below[SeriesSource(image, image.path)] = (
            name.with_name(f"{name.stem}-{counts[name]}.dcm") if counts[name] > 1 else name
        )
    return below, problems


def _name(image: DicomImage, base: Path) -> Path:
    """The file's own name, or of a series its number, in the folder that all its files share."""
    files = [path.relative_to(base) for path in image.files]
    if len(files) == 1:
        name = files[0].name
        ending = next((end for end in ENDINGS if name.lower().endswith(end)), "")
        return files[0].with_name(f"{name[: len(name) - len(ending)]}.dcm")
    shared = Path(*_shared([path.parts[:-1] for path in files]))
    return shared / f"series-{max(0, image.first.number)}.dcm"


def _shared(parts: list[tuple[str, ...]]) -> list[str]:
    same = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        same.append(level[0])
    return same
