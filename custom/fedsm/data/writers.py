"""Writes a mask so that `readers.read` gives it back, on its image's own grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from nibabel.affines import voxel_sizes
from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform
from PIL import Image

from fedsm.core.private_files import new_file
from fedsm.data.limits import load_volume
from fedsm.data.readers import VOLUMES, suffix

# Formats that keep every value of an 8-bit mask; GIF and PNM only as greys, which is what masks are.
_LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pnm")
_DEEP = (".png", ".tif", ".tiff")  # those of them with 16 bits
_SAVED: dict[str, dict[str, Any]] = {
    ".tif": {"compression": "tiff_deflate"},
    ".tiff": {"compression": "tiff_deflate"},
    ".png": {"compress_level": 4},  # Pillow's own level takes up to three times as long, and saves a tenth of a mask
}


def mask_name(image: Path, dtype: np.dtype) -> str:
    """The name of an image's mask: the image's own, but PNG if its format would not keep the values (JPEG)."""
    kept = _LOSSLESS if dtype == np.uint8 else _DEEP
    if suffix(image) in (*VOLUMES, *kept):
        return image.name
    return image.name[: len(image.name) - len(suffix(image))] + ".png"


def write_mask(path: Path, mask: np.ndarray, image: Path) -> None:
    """Writes the mask of an image; folders above it are made.

    Args:
        path: the file to write, named by `mask_name`.
        mask: (slices, H, W), in the order and orientation of `read(image)`.
        image: the image whose grid the mask has. A volume's mask gets its shape, affine and header.
    """
    new_file(path)
    if suffix(path) in VOLUMES:
        nibabel.save(mask_volume(mask, image), path)
        return
    Image.fromarray(mask[0]).save(path, **_SAVED.get(suffix(path), {}))


def mask_volume(mask: np.ndarray, image: Path) -> nibabel.Nifti1Image:
    """The mask (slices, H, W) of a volume, with the volume's shape, affine and header."""
    volume = load_volume(image)
    array = on_grid(mask, volume.affine)
    array = array.reshape(volume.shape if volume.shape[3:] in ((), (1,)) else volume.shape[:3])
    header = volume.header.copy()
    header.set_data_dtype(array.dtype)
    if "cal_max" in header:
        header["cal_min"] = header["cal_max"] = 0  # the image's window would show the mask black
    return type(volume)(array, volume.affine, header)


def picture_volume(mask: np.ndarray) -> nibabel.Nifti1Image:
    """The mask (1, H, W) of a picture as NIfTI that `read` gives back; a pixel counts as 1 mm, which is not known."""
    return nibabel.Nifti1Image(np.ascontiguousarray(_to_ras(mask)), np.eye(4))


def _to_ras(mask: np.ndarray) -> np.ndarray:
    return mask[:, ::-1].transpose(2, 1, 0)  # undoes what the reader does last


def on_grid(mask: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """A mask (slices, H, W) in the order and orientation of `readers.volume_array`, back on its volume's own grid."""
    back = ornt_transform(axcodes2ornt("RAS"), io_orientation(affine))
    return np.ascontiguousarray(apply_orientation(_to_ras(mask), back))


def pixel_area(image: Path) -> float | None:
    """Square millimetres of a pixel of a volume's slices; None for a picture, which does not say."""
    return None if suffix(image) not in VOLUMES else slice_pixel_area(load_volume(image).affine)


def slice_pixel_area(affine: np.ndarray) -> float:
    """Square millimetres of a pixel of the slices into which the reader cuts a volume."""
    turned = io_orientation(affine)[:, 0]
    return float(np.prod([size for size, axis in zip(voxel_sizes(affine), turned, strict=True) if axis in (0, 1)]))
