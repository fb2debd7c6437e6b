"""One DICOM image with its masks as files that the rest of the project reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from fedsm.core.private_files import new_file
from fedsm.core.task_settings import TaskSettings
from fedsm.data.dicom.contours import add_contours
from fedsm.data.dicom.header import RTSTRUCT
from fedsm.data.dicom.image import Loaded, affine_of, load
from fedsm.data.dicom.references import Masks
from fedsm.data.dicom.scan import FILE, SERIES, Problem
from fedsm.data.dicom.segmentation import LabelMasks, add_segmentation
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.labels import compose, mask_table
from fedsm.data.readers import suffix


class Refused(Exception):
    """An image that cannot be converted: its problems."""

    def __init__(self, *problems: Problem):
        super().__init__(problems[0].reason)
        self.problems = problems


def convert(image: DicomImage, masks: Masks, folder: Path, name: str, task: TaskSettings) -> list[str]:
    """Writes an image to `images/` and its mask to `masks/` below a folder.

    Args:
        image: a series or file.
        masks: its masks, one at least.
        folder: the site's folder of converted files.
        name: the opaque name of the image; of a clip each annotated frame gets a number as well.
        task: whose labels the masks are to hold.

    Returns:
        the stems that were written.

    Raises:
        Refused: something cannot be used. Nothing that was written counts.
    """
    if image.missing:
        reason = f"lacks {image.missing} slice{'s' * (image.missing != 1)}"
        raise Refused(Problem(SERIES, image.path, reason, "export it with all slices", len(image.files)))
    try:
        loaded = load(image)
    except Unusable as e:
        raise Refused(Problem(FILE, image.path, e.reason, e.remedy)) from e
    if loaded.bad:
        raise Refused(*(Problem(FILE, path, e.reason, f"{e.remedy} with its series") for path, e in loaded.bad))
    if masks.files and (masks.objects or len(masks.files) > 1):
        raise Refused(Problem(FILE, masks.files[0], "is one of several masks of an image", "keep one of them"))
    if masks.files:
        return [_with_file(loaded, masks.files[0], folder, name)]
    return _with_labels(loaded, _labels(image, masks, task), folder, name, task)


def _labels(image: DicomImage, masks: Masks, task: TaskSettings) -> LabelMasks:
    labels = LabelMasks(image)
    for one in masks.objects:
        try:
            (add_contours if one.sop_class == RTSTRUCT else add_segmentation)(labels, one.path, task)
        except Unusable as e:
            raise Refused(Problem(FILE, one.path, e.reason, e.remedy)) from e
    return labels


def _with_file(loaded: Loaded, mask: Path, folder: Path, name: str) -> str:
    _write_image(loaded, 0, folder / "images", name)
    shutil.copyfile(mask, new_file(folder / "masks" / f"{name}{suffix(mask)}"))
    return name


def _with_labels(loaded: Loaded, labels: LabelMasks, folder: Path, name: str, task: TaskSettings) -> list[str]:
    none = np.zeros(loaded.pixels.shape[:3], bool)
    stacked = np.stack([labels.labels.get(label, none) for label in task.labels])
    table = mask_table(task)
    if loaded.image.volume:
        values = np.stack([compose(stacked[:, frame], table) for frame in range(stacked.shape[1])])
        _write_image(loaded, 0, folder / "images", name)
        volume = nibabel.Nifti1Image(np.ascontiguousarray(values.transpose(2, 1, 0)), affine_of(loaded.image))
        nibabel.save(volume, new_file(folder / "masks" / f"{name}.nii"))
        return [name]
    stems = []
    for frame in np.flatnonzero(labels.seen).tolist():
        stems.append(name if len(loaded.pixels) == 1 else f"{name}-{frame + 1:05d}")
        _write_image(loaded, frame, folder / "images", stems[-1])
        Image.fromarray(compose(stacked[:, frame], table)).save(new_file(folder / "masks" / f"{stems[-1]}.png"))
    return stems


def _write_image(loaded: Loaded, frame: int, folder: Path, stem: str) -> None:
    """A volume as NIfTI, a frame of pictures as PNG; with exactly the values that prediction sees."""
    if loaded.image.volume:
        nibabel.save(loaded.nifti(), new_file(folder / f"{stem}.nii"))
        return
    pixels = loaded.pixels[frame]
    if pixels.dtype not in (np.uint8, np.uint16):
        reason = "is a picture whose values are not whole numbers from 0 to 65535"
        raise Refused(Problem(FILE, loaded.image.path, reason, "export it without rescaling"))
    Image.fromarray(pixels if pixels.shape[-1] == 3 else pixels[..., 0]).save(new_file(folder / f"{stem}.png"))
