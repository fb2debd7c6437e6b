"""A DICOM series that was uploaded, as its files or as a zip of them: in memory only, and quoted nowhere."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
from nibabel.orientations import io_orientation

from fedsm.core.errors import UserError
from fedsm.data.dicom.header import is_deflated
from fedsm.data.dicom.image import affine_of
from fedsm.data.dicom.library import highdicom
from fedsm.data.dicom.scan import scan
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.source import SeriesSource, seg_of
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.limits import TooLarge, check_volume
from fedsm.data.sources import Origin
from fedsm.serve.limits import Refused, ServeLimits
from fedsm.serve.memory_file import memory_files

SERIES = ".dcm"
_ZIP, _MAGIC = b"PK\3\4", slice(128, 132)
_BLOCK = 2**20
_LISTED_BYTES = 1024  # of a zip's list, for each file that it may hold: Python reads the whole list
_SIZE_OF_LIST = 5  # in what zipfile finds at a zip's end


def is_series(files: Sequence[bytes]) -> bool:
    """Whether an upload can only be DICOM: several files, a zip, or what says so in its first bytes."""
    return len(files) > 1 or files[0][:4] == _ZIP or files[0][_MAGIC] == b"DICM"


def unpack(files: Sequence[bytes], limits: ServeLimits) -> tuple[bytes, ...]:
    """The files of an upload; those in a zip are taken out, whatever their names, but for hidden ones.

    Raises:
        Refused: no zip that can be read, or too much in it.
    """
    if len(files) > 1 or files[0][:4] != _ZIP:
        return tuple(files)
    file = io.BytesIO(files[0])
    try:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # as ZipFile itself finds it
        if end and end[_SIZE_OF_LIST] > limits.files * _LISTED_BYTES:
            raise Refused(413, f"the zip lists too many files, the limit is {limits.files}")
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir() and not _is_hidden(entry.filename)]
            if len(entries) > limits.files:
                raise Refused(413, f"the zip holds {len(entries)} files, the limit is {limits.files}")
            return tuple(_read_all(archive, entries, limits.upload))
    except Refused:
        raise
    except Exception as e:  # encrypted, damaged, of another method: zipfile has many ways to say so
        raise Refused(422, "the zip cannot be read", "send the files themselves") from e


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _read_all(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], most: int) -> Iterator[bytes]:
    """The entries' contents, counted while they are inflated: what a zip says of its size may be wrong."""
    for entry in entries:
        content = bytearray()
        with archive.open(entry) as file:
            while block := file.read(_BLOCK):
                content += block
                if len(content) > most:
                    raise Refused(413, f"the zip holds more than {most / 1e6:.0f} MB", "send a part of it")
        most -= len(content)
        yield bytes(content)


@contextlib.contextmanager
def open_series(files: Sequence[bytes]) -> Iterator[SeriesSource]:
    """The one image of these files, while the block runs.

    Raises:
        Refused: they hold no image, or several, or a file is broken.
    """
    if any(is_deflated(io.BytesIO(content)) for content in files):
        raise Refused(422, "deflated DICOM is not taken", "send it uncompressed, or compressed by pictures")
    with memory_files(files, SERIES) as paths:
        found = scan(paths)
        if bad := next((problem for problem in found.problems if problem.bad), None):
            what = "a file" if bad.files == 1 else f"a series of {bad.files} files"
            raise Refused(422, f"{what} {bad.reason}", bad.remedy)
        if len(found.images) != 1:
            count = f"are {len(found.images)} images" if found.images else "hold no image"
            raise Refused(422, f"the DICOM files {count}", "send the files of one series")
        (image,) = found.images
        yield SeriesSource(image, image.path)


def values_of(image: DicomImage, limits: ServeLimits) -> tuple[int, int]:
    """How many values an image has, by its headers, and into how many slices the reader cuts it.

    Raises:
        TooLarge: more than the limits say.
    """
    first, frames = image.first, len(image.frames)
    if not image.volume and first.rows * first.columns > limits.pixels:
        raise TooLarge(f"{first.columns} x {first.rows} pixels, the limit is {limits.pixels / 1e6:g} million")
    shape = [first.columns, first.rows, frames, first.samples]
    check_volume(shape, np.dtype(np.float32).itemsize, limits.volume)
    axis = int(np.argsort(io_orientation(affine_of(image))[:, 0])[2]) if image.volume else 2
    return int(np.prod(shape)), shape[axis]


def make_seg(files: Sequence[bytes], mask: np.ndarray, origin: Origin) -> bytes:
    """The DICOM-SEG of a mask (slices, H, W), in the record of the patient whose series was uploaded.

    Raises:
        Refused: the series' header is such that none can be made.
    """
    with open_series(files) as source:
        try:
            highdicom()
            seg, file = seg_of(source.image, mask, origin), io.BytesIO()
            seg.save_as(file)
        except Unusable as e:
            raise Refused(422, f"the series {e.reason}", e.remedy) from e
        except UserError as e:
            raise Refused(422, e.message, e.remedy) from e
    return file.getvalue()
