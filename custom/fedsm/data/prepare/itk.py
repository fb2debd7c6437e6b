"""SimpleITK, imported when a source needs it: DICOM series, MetaImage, NRRD, and masks resampled to an image's grid."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedsm.core.errors import UserError
from fedsm.data.limits import TooLarge, check_volume, load_volume
from fedsm.data.prepare.source import Prepared
from fedsm.data.readers import VOLUMES, suffix

_LONGEST = 8  # bytes
_FLIP_XY = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM and ITK count to the left and back, NIfTI to the right and front


def simple_itk(source: str) -> ModuleType:
    """The module, without its warnings on stderr.

    Raises:
        UserError: not installed.
    """
    try:
        import SimpleITK
    except ImportError as e:
        raise UserError(f"{source} needs SimpleITK", remedy="pip install 'fedsm[prepare]'") from e
    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    return SimpleITK


def read_volume(path: Path, source: str) -> Any:
    """A MetaImage, NRRD or NIfTI file as a SimpleITK image."""
    itk = simple_itk(source)
    try:
        if suffix(path) in VOLUMES:
            load_volume(path)
        _check_size(_header(itk, str(path)))
        return itk.ReadImage(str(path))
    except TooLarge as e:
        raise UserError(f"{source}: {path} is too large ({e})") from e
    except RuntimeError as e:
        raise UserError(f"{source}: {path} cannot be read ({_last_line(e)})", remedy="download it again") from e


def read_series(folder: Path, source: str) -> Any:
    """The single DICOM series of a folder as a SimpleITK volume, slices in the order of their positions.

    Raises:
        UserError: no series, several, or one with a slice missing.
    """
    itk = simple_itk(source)
    series = itk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    if len(series) != 1:
        raise UserError(
            f"{source}: {folder} holds {len(series)} DICOM series, expected one", remedy="keep the axial T2 series"
        )
    names = itk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), series[0])
    try:
        headers = [_header(itk, name) for name in names]
        steps = np.diff([_height(header) for header in headers])
        for header in headers:
            _check_size(header, len(names))
        volume = itk.ReadImage(names)
    except TooLarge as e:
        raise UserError(f"{source}: {folder} is too large ({e})") from e
    except RuntimeError as e:
        raise UserError(f"{source}: {folder} cannot be read ({_last_line(e)})", remedy="download it again") from e
    if steps.size and np.ptp(steps) > 0.1 * np.median(steps):
        raise UserError(
            f"{source}: a slice of {folder} is missing", remedy="download the series again or remove the case"
        )
    return volume


def prepared(stem: str, image: Any, mask: Any, mask_path: Path, source: str) -> Prepared:
    """A pair of volumes on the image's grid; every value of the mask above 0 is gland.

    A mask on another grid (fewer slices, other origin) is resampled by its position in the patient.

    Raises:
        UserError: the image is not a 3D volume, or more than a tenth of the mask lies outside of it.
    """
    itk = simple_itk(source)
    if any(v.GetDimension() != 3 or v.GetNumberOfComponentsPerPixel() != 1 for v in (image, mask)):
        raise UserError(f"{source}: {mask_path} and its image must be 3D volumes with one value per voxel")
    gland = mask > 0
    if not _same_grid(image, gland):
        inside = itk.Resample(gland, image, itk.Transform(), itk.sitkNearestNeighbor, 0)
        if _volume(itk, inside) < 0.9 * _volume(itk, gland):
            raise UserError(
                f"{source}: {mask_path} does not lie inside its image", remedy="check that both are of one series"
            )
        gland = inside
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    voxels, labels = (itk.GetArrayFromImage(v).transpose(2, 1, 0) for v in (image, gland))
    return Prepared(stem, voxels, labels, _FLIP_XY @ affine)


def _header(itk: ModuleType, name: str) -> Any:
    """A reader that has read a file's header, but not its voxels."""
    reader = itk.ImageFileReader()
    reader.SetFileName(name)
    reader.ReadImageInformation()
    return reader


def _check_size(reader: Any, files: int = 1) -> None:
    """Refuses what would be too large; every value counts as one of the largest type."""
    shape = [*reader.GetSize(), files, reader.GetNumberOfComponents()]
    check_volume([n for n in shape if n != 1], _LONGEST)


def _height(reader: Any) -> float:
    """The position of a slice along the series' normal, in millimetres."""
    return float(np.dot(reader.GetOrigin(), reader.GetDirection()[2::3]))


def _same_grid(a: Any, b: Any) -> bool:
    close = 1e-2 * min(a.GetSpacing())
    return a.GetSize() == b.GetSize() and all(
        np.allclose(getattr(a, what)(), getattr(b, what)(), rtol=0, atol=tolerance)
        for what, tolerance in (("GetOrigin", close), ("GetSpacing", 1e-3), ("GetDirection", 1e-3))
    )


def _volume(itk: ModuleType, mask: Any) -> float:
    return float(itk.GetArrayViewFromImage(mask).sum()) * float(np.prod(mask.GetSpacing()))


def _last_line(e: Exception) -> str:
    """The reason in one of ITK's messages: they begin with lines of its source, and the reason is the last line."""
    return str(e).strip().splitlines()[-1]
