"""A DICOM image in memory: the volume of its slices, or its pictures, and what of it could not be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
from nibabel.orientations import io_orientation

from fedsm.data.dicom.header import DAMAGED
from fedsm.data.dicom.pixels import read_frames
from fedsm.data.dicom.series import DicomImage, Frame
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.readers import volume_array

_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM counts to the left and back, NIfTI to the right and front


@dataclass(frozen=True)
class Loaded:
    """A decoded image.

    Attributes:
        image: without the files that could not be decoded.
        pixels: (frames, H, W, samples), in the order of `image.frames`.
        bad: files that could not be decoded, and why.
    """

    image: DicomImage
    pixels: np.ndarray
    bad: tuple[tuple[Path, Unusable], ...] = ()

    @property
    def array(self) -> np.ndarray:
        """(slices, H, W, channels), as `readers.read` gives it of the NIfTI copy or of the pictures."""
        return volume_array(self.nifti()) if self.image.volume else self.pixels

    def nifti(self) -> nibabel.Nifti1Image:
        """The volume on the series' own grid: (columns, rows, frames)."""
        return nibabel.Nifti1Image(np.ascontiguousarray(self.pixels[..., 0].transpose(2, 1, 0)), affine_of(self.image))


def affine_of(image: DicomImage) -> np.ndarray:
    """Voxel to RAS millimetres."""
    assert image.affine is not None
    return _TO_RAS @ image.affine


def load(image: DicomImage) -> Loaded:
    """Decodes an image, each file once. Files that cannot be decoded are left out and listed.

    Raises:
        Unusable: none of its files can be decoded.
    """
    decoded, bad = {}, []
    for path in image.files:
        try:
            decoded[path] = _checked(read_frames(path), image, path)
        except Unusable as e:
            bad.append((path, e))
    kept = image.without({path for path, _ in bad}) if bad else image
    if kept is None:
        raise bad[0][1]
    pixels = np.stack([decoded[frame.instance.path][frame.index] for frame in kept.frames])
    return Loaded(kept, pixels if kept.volume else _full_range(pixels, kept.first.bits), tuple(bad))


def reader_frames(image: DicomImage) -> tuple[Frame, ...] | None:
    """The frame of each slice that the reader gives; None where it cuts across the frames (a sagittal series)."""
    if not image.volume:
        return image.frames
    axis, direction = io_orientation(affine_of(image))[2]
    return None if axis != 2 else image.frames if direction > 0 else image.frames[::-1]


def _checked(pixels: np.ndarray, image: DicomImage, path: Path) -> np.ndarray:
    """The frames of a file, if they are as many and as large as its header said."""
    one = next(frame.instance for frame in image.frames if frame.instance.path == path)
    if pixels.shape[:3] != (one.frames, one.rows, one.columns):
        raise Unusable(DAMAGED, "export it again, or remove it")
    return pixels


def _full_range(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Grey pictures as a file of 8 or 16 bits has them: 9 to 15 bits over the whole range of 16."""
    if pixels.dtype == np.int16 and pixels.min() >= 0:
        pixels = pixels.astype(np.uint16)
    if pixels.dtype != np.uint16 or not 8 < bits < 16 or pixels.max() >= 2**bits:
        return pixels
    return (pixels.astype(np.float64) * (65535 / (2**bits - 1))).round().astype(np.uint16)
