"""What somebody uploaded, as the networks see it. The only place that knows which kinds of files are taken."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.text import one_line
from fedsm.data.limits import TooLarge, check_volume, load_volume, open_picture
from fedsm.data.readers import VOLUMES, slice_count
from fedsm.data.site_folder import read_image
from fedsm.data.writers import pixel_area
from fedsm.serve.limits import Refused, ServeLimits
from fedsm.serve.memory_file import memory_file
from fedsm.super_model.model import SuperModel
from fedsm.super_model.overlay import LONGEST, preview

PICTURE = ".png"  # any picture: its content decides on the format
_KINDS = "send PNG, JPEG, TIFF or NIfTI"
_PICTURE_BYTES = 40  # per pixel: three channels as bytes and as float32, scaled, and shown
_VOXEL_BYTES = 16  # per voxel: as stored, as float32, scaled, and shown
_SHOWN = 1024  # pixels of the longer side of a volume's slice on the page
_NIFTI = {(348).to_bytes(4, order) for order in ("little", "big")} | {
    (540).to_bytes(4, order) for order in ("little", "big")
}


@dataclass(frozen=True)
class Upload:
    """An upload that was read.

    Attributes:
        content: the file's bytes.
        ending: of a file with such content: `.nii`, `.nii.gz`, or `.png` for every picture.
        pixels: (slices, C, S, S), as the networks see it.
        size: (H, W) of the image.
        shown: (slices, h, w, C) uint8, for people.
        area: square millimetres of a pixel; None: unknown.
    """

    content: bytes
    ending: str
    pixels: torch.Tensor
    size: tuple[int, int]
    shown: np.ndarray
    area: float | None

    @property
    def is_volume(self) -> bool:
        return self.ending in VOLUMES


def memory_of(content: bytes, model: SuperModel, limits: ServeLimits) -> int:
    """Bytes that reading and predicting an upload takes, roughly, from its header: nothing is decoded.

    Raises:
        Refused: it is too large, or no image.
    """
    ending = ending_of(content)
    with memory_file(content, ending) as path, _refusing(path):
        return _memory(path, ending, model, limits)


def read_upload(content: bytes, model: SuperModel, limits: ServeLimits) -> Upload:
    """Reads an upload whose size was checked (`memory_of`); its name plays no part.

    Raises:
        Refused: it is no image that this super model can segment.
    """
    ending = ending_of(content)
    with memory_file(content, ending) as path, _refusing(path):
        image = read_image(path, model.settings.task)
        pixels = model.pixels(image, "the upload")
        longest = min(_SHOWN if ending in VOLUMES else LONGEST, max(image.shape[1:3]))
        size = (int(image.shape[1]), int(image.shape[2]))
        return Upload(content, ending, pixels, size, preview(image, longest), pixel_area(path))


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """What goes wrong with a file becomes a refusal that does not name it."""
    try:
        yield
    except TooLarge as e:
        raise Refused(413, str(e)) from e
    except MemoryError as e:
        raise Refused(413, "the upload does not fit into memory", "make it smaller") from e
    except UserError as e:
        raise Refused(422, _without(path, e.message), _KINDS) from e
    except Exception as e:  # every decoder has its own exceptions
        raise Refused(422, f"cannot be read ({_without(path, e)})", _KINDS) from e


def ending_of(content: bytes) -> str:
    """The ending of a file with this content."""
    if content[:2] == b"\x1f\x8b":
        return ".nii.gz"
    return ".nii" if content[:4] in _NIFTI else PICTURE


def _memory(path: Path, ending: str, model: SuperModel, limits: ServeLimits) -> int:
    if ending not in VOLUMES:
        with open_picture(path, limits.pixels) as picture:
            if picture.format != "MPO" and _has_second(picture):
                raise ValueError("several pictures in one file")  # the reader would count them all
            return _PICTURE_BYTES * picture.width * picture.height
    voxels = math.prod(load_volume(path, limits.volume).shape)
    size, task = model.settings.size, model.settings.task
    slices = slice_count(path)
    check_volume([slices, task.channels, size, size], 4, limits.volume)
    return _VOXEL_BYTES * voxels + 4 * (task.channels + len(task.labels)) * slices * size**2


def _has_second(picture: Image.Image) -> bool:
    try:
        picture.seek(1)
    except EOFError:
        return False
    return True


def _without(path: Path, error: object) -> str:
    """An error's first line without our path, which is nobody's business."""
    return one_line((str(error).splitlines() or [type(error).__name__])[0].replace(str(path), "the upload"), 160)
