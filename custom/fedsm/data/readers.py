"""Reads one image or mask file into an array. The only place that knows file formats."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.data.limits import load_volume, open_picture

if TYPE_CHECKING:  # see `limits`
    import nibabel

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pnm")
VOLUMES = (".nii", ".nii.gz")
FILE_KINDS = ("pictures", "volumes", "mixed")
FORMATS = "PNG, JPEG, TIFF, BMP, GIF, PPM or NIfTI"


def suffix(path: Path) -> str:
    """The file's ending in lower case, `.nii.gz` as one."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def stem(path: Path) -> str:
    """The file's name without its ending."""
    return path.name[: -len(suffix(path))] if suffix(path) else path.name


def is_supported(path: Path) -> bool:
    """Whether the ending is one we read."""
    return suffix(path) in PICTURES + VOLUMES


def file_kind(paths: Iterable[Path]) -> str:
    """What a site's images are: `pictures`, `volumes` or `mixed`."""
    kinds = {suffix(path) in VOLUMES for path in paths}
    return "mixed" if len(kinds) > 1 else "volumes" if kinds == {True} else "pictures"


def read(path: Path, site: str | None = None, mask: bool = False) -> np.ndarray:
    """Reads a file as (slices, H, W, channels), with the file's own numbers.

    A picture is one slice. A NIfTI volume is turned to the nearest RAS orientation and cut along its third
    axis; a 2D NIfTI is one slice. A fourth axis is that of the channels.

    A picture with a palette of greys is read as these greys, as image and as mask (programs that write GIF renumber
    palettes, but keep the greys). With a palette of colours, an image is RGB, and a mask is the palette's indices:
    there the colours only paint the labels.

    Args:
        path: the file; its content decides on the format, not its name.
        site: named in errors; None: the file belongs to no site, as in prediction.
        mask: whether its values are labels.

    Raises:
        UserError: unreadable, truncated, too large, several pictures in one file, or of an unexpected shape.
    """
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            raise ValueError("not a regular file")
        array = volume_array(load_volume(path), mask) if suffix(path) in VOLUMES else _read_picture(path, mask)
    except UserError:
        raise
    except Exception as e:  # every decoder has its own exceptions; to a person they all mean the same
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        remedy = "replace the file or remove it with its pair" if site else "replace the file"
        raise UserError(f"cannot be read ({reason})", site=site, file=path, remedy=remedy) from e
    if array.ndim != 4 or 0 in array.shape:
        raise UserError(f"has shape {array.shape}, expected a 2D picture or a 3D volume", site=site, file=path)
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # 16-bit values come in the file's byte order


def _read_picture(path: Path, mask: bool) -> np.ndarray:
    with open_picture(path) as picture:
        count = getattr(picture, "n_frames", 1)
        if count > 1 and picture.format != "MPO":  # a camera's JPEG with its preview
            raise ValueError(f"{count} pictures in one file")
        if picture.mode in ("P", "PA"):
            array = _from_palette(picture, mask)
        elif picture.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
            array = np.asarray(picture.convert("RGB"))
        else:
            array = np.asarray(picture.convert("L") if picture.mode == "1" else picture)
    return array[None, ..., None] if array.ndim == 2 else array[None]


def _from_palette(picture: Image.Image, mask: bool) -> np.ndarray:
    indices, rgb = np.asarray(picture), np.asarray(picture.convert("RGB"))
    if not has_colours(picture):
        return rgb[..., 0]
    if mask:
        return indices if picture.mode == "P" else indices[..., 0]  # "PA": with transparency
    return rgb


def has_colours(picture: Image.Image) -> bool:
    """Whether a picture has a palette with anything but greys in it."""
    palette = np.array(picture.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
    return bool((palette != palette[:, :1]).any())


def volume_array(volume: nibabel.Nifti1Image, mask: bool = False) -> np.ndarray:
    """A volume as (slices, H, W, channels); see `read`.

    Raises:
        ValueError: it is not one 2D or 3D image of numbers.
    """
    from nibabel.orientations import apply_orientation, io_orientation

    array = np.asanyarray(volume.dataobj)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or (mask and array.shape[-1] > 1):
        raise ValueError(f"shape {array.shape} is not a 2D or 3D {'mask' if mask else 'image, nor one with channels'}")
    if array.dtype.kind not in "buif":
        raise ValueError(f"voxels of type {array.dtype} are neither numbers nor labels")
    array = apply_orientation(array, io_orientation(volume.affine))
    # (x, y, z) to slices of rows: first row at the front of the patient, as radiologists look at it.
    return np.ascontiguousarray(array.transpose(2, 1, 0, 3)[:, ::-1])


def slice_count(path: Path) -> int:
    """How many slices `read` will give, from the header alone; 0 if it cannot be read, which `read` will report."""
    if suffix(path) not in VOLUMES:
        return 1
    import nibabel

    try:
        header = nibabel.load(path)
        turned = np.argsort(nibabel.io_orientation(header.affine)[:, 0])
        return int((*header.shape, 1, 1)[:3][turned[2]])
    except Exception:  # every decoder has its own
        return 0


def voxel_spacing(path: Path) -> tuple[float, float, float] | None:
    """Millimetres from slice to slice, from row to row and from column to column of a volume, as `read` turns it.

    None for a picture: its file has no spacing that could be trusted.
    """
    if suffix(path) not in VOLUMES:
        return None
    from nibabel.affines import voxel_sizes
    from nibabel.orientations import inv_ornt_aff, io_orientation

    header = load_volume(path)
    x, y, z = voxel_sizes(header.affine @ inv_ornt_aff(io_orientation(header.affine), (*header.shape, 1, 1)[:3]))
    return float(z), float(y), float(x)


def grid_difference(image: Path, mask: Path) -> str | None:
    """How the grids of two volumes of the same size differ, or None; from the headers alone.

    They differ if the spacing differs by more than 1 %, or a corner is more than half a voxel away. The reader turns
    both to RAS, so a volume that is stored flipped does not differ.
    """
    from nibabel.affines import voxel_sizes
    from nibabel.orientations import inv_ornt_aff, io_orientation

    affines = []
    for path in (image, mask):
        header = load_volume(path)
        shape, orientation = (*header.shape, 1, 1)[:3], io_orientation(header.affine)
        affines.append(header.affine @ inv_ornt_aff(orientation, shape))
    turned = [shape[i] for i in np.argsort(orientation[:, 0])]
    spacings = [voxel_sizes(a) for a in affines]
    if not np.allclose(spacings[0], spacings[1], rtol=0.01):
        return "image {} mm, mask {} mm".format(*(" x ".join(f"{s:.3g}" for s in spacing) for spacing in spacings))
    corners = np.array([*itertools.product(*((0, n - 1) for n in turned), [1])])
    shift = np.linalg.norm((corners @ (affines[0] - affines[1]).T)[:, :3], axis=1).max()
    return f"up to {shift:.3g} mm apart" if shift > spacings[0].min() / 2 else None
