"""What somebody uploaded, as the networks see it. The only place that knows which kinds of files are taken."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.text import one_line
from fedsm.data.dicom.image import affine_of
from fedsm.data.limits import TooLarge, check_volume, load_volume, open_picture
from fedsm.data.readers import VOLUMES, slice_count
from fedsm.data.site_folder import read_image
from fedsm.data.writers import pixel_area
from fedsm.serve.limits import Refused, ServeLimits
from fedsm.serve.memory_file import memory_file
from fedsm.serve.series import SERIES, is_series, open_series, unpack, values_of
from fedsm.super_model.model import SuperModel
from fedsm.super_model.overlay import LONGEST, preview

PICTURE = ".png"  # any picture: its content decides on the format
_KINDS = "send PNG, JPEG, TIFF, NIfTI or a DICOM series"
_PICTURE_BYTES = 40  # per pixel: three channels as bytes and as float32, scaled, and shown
_VOXEL_BYTES = 16  # per voxel: as stored, as float32, scaled, and shown
_VALUE_BYTES = 24  # per value of a DICOM series: the same, and as float64 while it is rescaled
_SHOWN = 1024  # pixels of the longer side of a volume's slice on the page
_NIFTI = {(348).to_bytes(4, order) for order in ("little", "big")} | {
    (540).to_bytes(4, order) for order in ("little", "big")
}


@dataclass(frozen=True)
class Upload:
    """An upload that was read.

    Attributes:
        files: its bytes; of a DICOM series those of each file.
        ending: of a file with such content: `.nii`, `.nii.gz`, `.dcm`, or `.png` for every other picture.
        pixels: (slices, C, S, S), as the networks see it.
        size: (H, W) of the image.
        shown: (slices, h, w, C) uint8, for people.
        area: square millimetres of a pixel; None: unknown.
        is_volume: whether its slices have numbers.
        affine: of a DICOM volume: voxel (column, row, slice) to RAS millimetres.
    """

    files: tuple[bytes, ...]
    ending: str
    pixels: torch.Tensor
    size: tuple[int, int]
    shown: np.ndarray
    area: float | None
    is_volume: bool
    affine: np.ndarray | None = None


def memory_of(files: Sequence[bytes], model: SuperModel, limits: ServeLimits) -> int:
    """Bytes that reading and predicting an upload takes, roughly, from its header: nothing is decoded.

    Raises:
        Refused: it is too large, or no image.
    """
    if is_series(files):
        with _refusing(), open_series(unpack(files, limits)) as source:
            values, slices = values_of(source.image, limits)
            return _VALUE_BYTES * values + _network_bytes(slices, model, limits)
    ending = ending_of(files[0])
    with memory_file(files[0], _in_name(ending)) as path, _refusing(path):
        return _memory(path, ending, model, limits)


def read_upload(files: Sequence[bytes], model: SuperModel, limits: ServeLimits) -> Upload:
    """Reads an upload whose size was checked (`memory_of`); its name plays no part.

    Raises:
        Refused: it is no image that this super model can segment.
    """
    if is_series(files):
        return _read_series(unpack(files, limits), model)
    content = files[0]
    ending = ending_of(content)
    with memory_file(content, _in_name(ending)) as path, _refusing(path):
        image = read_image(path, model.settings.task)
        pixels = model.pixels(image, "the upload")
        longest = min(_SHOWN if ending in VOLUMES else LONGEST, max(image.shape[1:3]))
        size = (int(image.shape[1]), int(image.shape[2]))
        shown = preview(image, longest)
        return Upload((content,), ending, pixels, size, shown, pixel_area(path), ending in VOLUMES)


def _read_series(files: tuple[bytes, ...], model: SuperModel) -> Upload:
    with _refusing(), open_series(files) as source:
        opened = source.read(model.settings.task)
        if opened.problems:
            raise opened.problems[0]
        image, affine = opened.array, affine_of(source.image) if source.image.volume else None
        pixels = model.pixels(image, "the upload")
        longest = min(_SHOWN if opened.numbered else LONGEST, max(image.shape[1:3]))
        size = (int(image.shape[1]), int(image.shape[2]))
        return Upload(files, SERIES, pixels, size, preview(image, longest), opened.area, opened.numbered, affine)


@contextlib.contextmanager
def _refusing(path: Path | None = None) -> Iterator[None]:
    """What goes wrong with a file becomes a refusal that does not name it."""
    try:
        yield
    except Refused:
        raise
    except TooLarge as e:
        raise Refused(413, str(e)) from e
    except MemoryError as e:
        raise Refused(413, "the upload does not fit into memory", "make it smaller") from e
    except UserError as e:
        raise Refused(422, _without(path, e.message), (e.remedy if path is None else None) or _KINDS) from e
    except Exception as e:  # every decoder has its own exceptions
        raise Refused(422, f"cannot be read ({_without(path, e)})", _KINDS) from e


def ending_of(content: bytes) -> str:
    """The ending of a file with this content."""
    if content[:2] == b"\x1f\x8b":
        return ".nii.gz"
    return ".nii" if content[:4] in _NIFTI else PICTURE


def _in_name(ending: str) -> str:
    """What the name of a file in memory ends with: of a picture only the content counts."""
    return "" if ending == PICTURE else ending


def _memory(path: Path, ending: str, model: SuperModel, limits: ServeLimits) -> int:
    if ending not in VOLUMES:
        with open_picture(path, limits.pixels) as picture:
            if picture.format != "MPO" and _has_second(picture):
                raise ValueError("several pictures in one file")  # the reader would count them all
            return _PICTURE_BYTES * picture.width * picture.height
    voxels = math.prod(load_volume(path, limits.volume).shape)
    return _VOXEL_BYTES * voxels + _network_bytes(slice_count(path), model, limits)


def _network_bytes(slices: int, model: SuperModel, limits: ServeLimits) -> int:
    """What slices and their masks take at the network's size.

    Raises:
        TooLarge: more than the limit.
    """
    size, task = model.settings.size, model.settings.task
    check_volume([slices, task.channels, size, size], 4, limits.volume)
    return 4 * (task.channels + len(task.labels)) * slices * size**2


def _has_second(picture: Image.Image) -> bool:
    try:
        picture.seek(1)
    except EOFError:
        return False
    return True


def _without(path: Path | None, error: object) -> str:
    """An error's first line without our path, which is nobody's business. None: of a DICOM series, whose values are
    a patient's: of an exception only its name."""
    if path is None:
        return type(error).__name__ if isinstance(error, Exception) else one_line(str(error), 160)
    return one_line((str(error).splitlines() or [type(error).__name__])[0].replace(str(path), "the upload"), 160)
