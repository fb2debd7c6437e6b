"""An image to predict, whatever kind of file it is: it knows how to read itself and how to write its mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from PIL import Image

from fedsm.core.errors import UserError
from fedsm.core.task_settings import TaskSettings
from fedsm.data.readers import VOLUMES, suffix
from fedsm.data.site_folder import read_image
from fedsm.data.writers import mask_name, pixel_area, write_mask


@dataclass(frozen=True)
class Origin:
    """What made a mask: the task, the version of our software, the super model's run and the network that was used."""

    task: TaskSettings
    software: str
    super_model: str
    model: str


class SliceName(NamedTuple):
    """How DICOM names a slice: its series and its instance. Empty: no DICOM, or a slice across all instances."""

    series: str = ""
    instance: str = ""


class Opened(ABC):
    """An image that was read.

    Attributes:
        array: (slices, H, W, C) with the task's channels.
        numbered: whether its slices have numbers, also if it is only one.
        area: square millimetres of a pixel; None: unknown.
        problems: parts of it that could not be read, and are not in `array`.
    """

    array: np.ndarray
    numbered: bool
    area: float | None
    problems: Sequence[UserError] = ()

    @abstractmethod
    def write_mask(self, path: Path, mask: np.ndarray, origin: Origin) -> None:
        """Writes its mask (slices, H, W); folders above it are made."""

    def write_capture(self, path: Path, picture: Image.Image, origin: Origin) -> None:
        """Writes a picture of the prediction in the image's own patient record, where there is one."""

    def slice_names(self) -> Sequence[SliceName]:
        """The name of each slice."""
        return [SliceName()] * len(self.array)


class Source(ABC):
    """An image that can be read.

    Attributes:
        path: the file, or the first of its files: named in messages.
        has_record: whether it belongs to a patient's record, so that a picture of its prediction can be written there.
    """

    path: Path
    has_record: ClassVar[bool] = False

    @abstractmethod
    def read(self, task: TaskSettings) -> Opened:
        """Reads it.

        Raises:
            UserError: it cannot be used.
        """

    @abstractmethod
    def mask_name(self, below: Path, dtype: np.dtype) -> str:
        """The file name of its mask.

        Args:
            below: its path below the folder that all inputs share.
            dtype: of the mask's values.
        """


@dataclass(frozen=True)
class FileSource(Source):
    """A picture or a NIfTI volume; its mask has the same format."""

    path: Path

    def read(self, task: TaskSettings) -> Opened:
        return _OpenedFile(self.path, read_image(self.path, task))

    def mask_name(self, below: Path, dtype: np.dtype) -> str:
        return mask_name(below, dtype)


class _OpenedFile(Opened):
    def __init__(self, path: Path, array: np.ndarray):
        self._path, self.array = path, array
        self.numbered, self.area = suffix(path) in VOLUMES, pixel_area(path)

    def write_mask(self, path: Path, mask: np.ndarray, origin: Origin) -> None:
        write_mask(path, mask, self._path)
