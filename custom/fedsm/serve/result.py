"""A prediction that is kept for the page: its answer, the pictures that are shown, and the files to download."""

from __future__ import annotations

import gzip
import io
import time
from dataclasses import dataclass

import nibabel
import numpy as np
from PIL import Image

import fedsm
from fedsm.core.task_settings import TaskSettings
from fedsm.data.labels import decompose, flat_numbers
from fedsm.data.readers import VOLUMES
from fedsm.data.sources import Origin
from fedsm.data.writers import mask_volume, on_grid, picture_volume
from fedsm.serve.answer import Answer, colour, describe_slices, summarize, used_networks
from fedsm.serve.limits import Refused
from fedsm.serve.memory_file import memory_file
from fedsm.serve.series import SERIES, make_seg
from fedsm.serve.upload import Upload
from fedsm.super_model.model import SuperModel
from fedsm.super_model.overlay import line
from fedsm.super_model.prediction import BatchPrediction, join

MASK_PNG, MASK_NIFTI, MASK_DICOM = "mask.png", "mask.nii.gz", "mask.dcm"
_FILL = 110  # of 255: how much of the image a label's inside hides; its outline hides all


@dataclass(frozen=True)
class Result:
    """One prediction.

    Attributes:
        answer: what is told about it.
        shown: (slices, h, w, C) uint8.
        mask: (slices, H, W), the task's mask values.
        nifti: the mask as .nii.gz, on the image's grid.
        task: the task.
        seg: the mask as DICOM-SEG; None: the upload was no DICOM.
    """

    answer: Answer
    shown: np.ndarray
    mask: np.ndarray
    nifti: bytes
    task: TaskSettings
    seg: bytes | None = None

    @property
    def nbytes(self) -> int:
        """What it takes in memory, but for a few kilobytes."""
        return self.shown.nbytes + self.mask.nbytes + len(self.nifti) + len(self.seg or b"") + 1000 * len(self.mask)

    def image_png(self, number: int) -> bytes:
        """A slice of the image."""
        picture = self.shown[self._row(number)]
        return _png(Image.fromarray(picture if picture.shape[-1] == 3 else picture[..., 0]))

    def overlay_png(self, number: int) -> bytes:
        """The labels of a slice in colour, transparent elsewhere, in the size of `image_png`."""
        labels = decompose(self.mask[self._row(number)], self.task)
        size, count = (self.shown.shape[2], self.shown.shape[1]), len(labels)
        numbers = Image.fromarray(flat_numbers(labels, self.task))
        small = np.array(numbers.resize(size, Image.Resampling.NEAREST))
        for i, label in enumerate(labels):  # the outline of a label is a colour of its own in the palette
            resized = np.asarray(Image.fromarray(label).resize(size, Image.Resampling.NEAREST))
            small[line(resized, thick=max(size) > 400)] = count + i + 1
        picture = Image.fromarray(small)
        colours = [colour(i) for i in range(count)]
        picture.putpalette([0, 0, 0, *(value for rgb in (*colours, *colours) for value in rgb)])
        return _png(picture, transparency=bytes([0, *[_FILL] * count, *[255] * count]))

    def mask_png(self, number: int) -> bytes:
        """The mask of a slice, with the task's mask values.

        Raises:
            Refused: PNG does not hold such values.
        """
        mask = self.mask[self._row(number)]
        if mask.dtype not in (np.uint8, np.uint16):
            raise Refused(404, "PNG does not hold the mask values of this task", f"take {MASK_NIFTI}")
        return _png(Image.fromarray(mask))

    def dicom(self) -> bytes:
        """The mask as DICOM-SEG.

        Raises:
            Refused: the upload was no DICOM.
        """
        if self.seg is None:
            raise Refused(404, "the upload was no DICOM, so there is no DICOM-SEG", f"take {MASK_NIFTI}")
        return self.seg

    def _row(self, number: int) -> int:
        if not 1 <= number <= len(self.mask):
            raise Refused(404, f"slices are counted from 1 to {len(self.mask)}")
        return number - 1


def make_result(
    model: SuperModel, upload: Upload, choice: str, batch: BatchPrediction, name: str, started: float
) -> Result:
    """The result of a prediction.

    Args:
        model: the super model.
        upload: what was uploaded.
        choice: the network that was asked for.
        batch: its slices' predictions.
        name: the result's id.
        started: when its upload was there, by `time.perf_counter`.
    """
    predictions = model.finish(batch, upload.size)
    mask, task = np.stack([p.mask for p in predictions]), model.settings.task
    slices = describe_slices(model, upload, choice, batch, predictions)
    used = used_networks(slices)
    nifti = _nifti(mask, upload)
    origin = Origin(task, fedsm.__version__, str(model.manifest.get("run_id") or "unknown"), join(predictions).model)
    seg = make_seg(upload.files, mask, origin) if upload.ending == SERIES else None
    answer = Answer(
        id=name,
        kind="volume" if upload.is_volume else "picture",
        width=upload.size[1],
        height=upload.size[0],
        choice=choice,
        model=slices[0].model if len(slices) == 1 else next(iter(used)),
        summary=summarize(choice, slices),
        used=used,
        slices=slices,
        files=[MASK_NIFTI, *([MASK_DICOM] if seg else []), "image/SLICE.png", "overlay/SLICE.png", "mask/SLICE.png"],
        seconds=round(time.perf_counter() - started, 4),
    )
    return Result(answer, upload.shown, mask, nifti, task, seg)


def _nifti(mask: np.ndarray, upload: Upload) -> bytes:
    if upload.affine is not None:
        volume = nibabel.Nifti1Image(on_grid(mask, upload.affine), upload.affine)
    elif upload.ending in VOLUMES:
        with memory_file(upload.files[0], upload.ending) as path:
            volume = mask_volume(mask, path)
    else:
        volume = picture_volume(mask)
    return gzip.compress(volume.to_bytes(), compresslevel=4)


def _png(picture: Image.Image, **options: bytes) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=3, **options)
    return file.getvalue()
