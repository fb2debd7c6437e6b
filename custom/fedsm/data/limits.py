"""How large an image may become in memory, checked by its header before anything is decoded.

A file of a few megabytes can hold gigabytes of zeros. All code that reads images opens them here.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:  # loading it takes as long as all the rest of this room, and most sites have pictures
    import nibabel

# 100 million pixels: more than any fundus camera or microscope camera takes. Reading and segmenting one takes 2 GB.
PICTURE_PIXELS = 100_000_000
# 4 GiB decoded, a whole-body CT of 512 x 512 x 2000 voxels with its scale applied; the reader needs twice that.
VOLUME_BYTES = 4 * 1024**3
# The most that may be between a NIfTI header and its voxels: notes of scanners and programs. nibabel reads it all.
EXTENSION_BYTES = 64 * 1024**2
# The formats of `readers.FORMATS`. Pillow knows many more, and starts a program (Ghostscript) to read one of them.
PICTURE_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "PPM")
_SCALED_BYTES = 8  # scaled voxels become float64

Image.MAX_IMAGE_PIXELS = PICTURE_PIXELS  # Pillow refuses at twice this, and warns below: `open_picture` refuses then
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class TooLarge(ValueError):
    """An image above the limit; the message says its size, the limit and the remedy."""


def open_picture(path: Path, most: int = PICTURE_PIXELS) -> Image.Image:
    """Opens a picture; its pixels are not decoded yet. `most`: pixels that it may have.

    Raises:
        TooLarge: it has too many pixels.
        PIL.UnidentifiedImageError: not one of the formats that are read here.
    """
    try:
        picture = Image.open(path, formats=PICTURE_FORMATS)
    except Image.DecompressionBombError as e:
        raise TooLarge(_too_many_pixels("far too many pixels", most)) from e
    width, height = picture.size
    if width * height > most:
        picture.close()
        raise TooLarge(_too_many_pixels(f"{width} x {height} pixels", most))
    return picture


def load_volume(path: Path, most: int = VOLUME_BYTES) -> nibabel.Nifti1Image:
    """Opens a NIfTI volume; its voxels are not read yet, and reading them gives no more than the header says.

    `most`: bytes that it may take in memory.

    Raises:
        TooLarge: it would be too large in memory.
    """
    import nibabel
    from nibabel.openers import ImageOpener

    with ImageOpener(path, "rb") as f:  # .nii or .nii.gz
        start = f.read(nibabel.Nifti2Header.template_dtype.itemsize)
    kind = next((k for k in (nibabel.Nifti1Header, nibabel.Nifti2Header) if k.may_contain_header(start)), None)
    if kind:  # otherwise nibabel says below that it is not NIfTI
        header = kind(start[: kind.template_dtype.itemsize], check=False)
        if (begin := float(header["vox_offset"])) > EXTENSION_BYTES:
            limit = f"the limit is {EXTENSION_BYTES / 1e6:.0f} MB"
            raise TooLarge(f"{begin / 1e6:.0f} MB of notes before the voxels, {limit}: export it without them")
        slope, shift = (float(header[name]) for name in ("scl_slope", "scl_inter"))
        scaled = math.isfinite(slope) and slope not in (0, 1) or math.isfinite(shift) and shift != 0
        shape = [int(size) for size in header["dim"][1 : 1 + max(0, min(7, int(header["dim"][0])))]]
        check_volume(shape, _SCALED_BYTES if scaled else header.get_data_dtype().itemsize, most)
    return nibabel.load(path)


def check_volume(shape: list[int], value_bytes: int, most: int = VOLUME_BYTES) -> None:
    """Refuses a volume that would be too large.

    Args:
        shape: its size along every axis, including the number of values per voxel.
        value_bytes: bytes of one value in memory.
        most: bytes that it may take.

    Raises:
        TooLarge: it would be.
    """
    size = math.prod(max(0, n) for n in shape) * value_bytes
    if size > most:
        raise TooLarge(
            f"{' x '.join(map(str, shape))} voxels take {size / 1024**3:.1f} GiB in memory, the limit is"
            f" {most / 1024**3:g} GiB: crop it or cut it into parts"
        )


def _too_many_pixels(size: str, most: int) -> str:
    return f"{size}, the limit is {most / 1e6:g} million: make it smaller or cut it into parts"
