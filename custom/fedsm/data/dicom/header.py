"""One DICOM file's header as checked, plain values; pixels are not read.

A header comes from a stranger: lengths, numbers and nesting are checked here, once, before anything else uses them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fedsm.data.dicom.library import pydicom
from fedsm.data.dicom.planes import Plane, planes_of
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.limits import PICTURE_PIXELS, TooLarge, check_volume

ENDINGS = (".dcm", ".dicom", ".ima")
SEG, LABELMAP = "1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7"
RTSTRUCT, RTDOSE = "1.2.840.10008.5.1.4.1.1.481.3", "1.2.840.10008.5.1.4.1.1.481.2"
DICOMDIR = "1.2.840.10008.1.3.10"  # an index with paths, which are never followed
DAMAGED = "is damaged or truncated"
_MAGIC_AT, _MAGIC = 128, b"DICM"
_DEFLATED = "1.2.840.10008.1.2.1.99"
_NATIVE = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", _DEFLATED)
_INFLATED_BYTES = 1024**3  # of a deflated file, which is inflated as a whole
_LONG_VALUE = 1024**2  # longer values stay in the file where only the header is read
_MOST_FRAMES = 100_000
# The only tags that are read for a scan. Sequences: enhanced multi-frame images, and what masks refer to.
_TAGS = [
    "SOPClassUID",
    "SOPInstanceUID",
    "PatientID",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "FrameOfReferenceUID",
    "Modality",
    "SeriesNumber",
    "InstanceNumber",
    "ImageType",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "PixelSpacing",
    "ImageOrientationPatient",
    "ImagePositionPatient",
    "SliceThickness",
    "SpacingBetweenSlices",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
]


@dataclass(frozen=True)
class Instance:
    """One DICOM file.

    Attributes:
        patient: PatientID, or the study's UID where there is none.
        planes: of each frame; empty: a picture, or a file without pixels.
        frames: 0: no pixels.
    """

    path: Path
    sop_class: str
    uid: str
    patient: str
    study: str
    series: str
    frame_of_reference: str
    modality: str
    syntax: str
    number: int
    localizer: bool
    rows: int
    columns: int
    frames: int
    samples: int
    bits: int
    planes: tuple[Plane, ...]


def looks_like_dicom(path: Path) -> bool:
    """Whether a file says that it is DICOM: by its first bytes, or by its ending (some old files have no preamble)."""
    if path.suffix.lower() in ENDINGS:
        return True
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            return False
        with path.open("rb") as f:
            return f.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
    except OSError:
        return False


def open_file(path: Path, **options: Any) -> Any:
    """A file as a pydicom dataset; what is deflated is refused if it grows beyond the limit.

    Raises:
        Unusable: it is no DICOM file, or a damaged one.
    """
    read = pydicom().dcmread
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            raise ValueError("not a regular file")
        _check_deflated(path)
        header_only = options.get("stop_before_pixels")
        dataset = read(path, force=True, defer_size=_LONG_VALUE if header_only else None, **options)
        if "SOPClassUID" not in dataset:
            dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID
        return dataset
    except (TooLarge, Unusable) as e:
        raise e if isinstance(e, Unusable) else Unusable(str(e), "export it again") from e
    except Exception as e:  # pydicom on malformed input: any exception, RecursionError too
        raise Unusable(DAMAGED, "export it again, or remove it") from e


def read_instance(path: Path) -> Instance:
    """The header of a file.

    Raises:
        Unusable: it is damaged, too large, or lacks what every DICOM file has.
    """
    dataset = open_file(path, stop_before_pixels=True, specific_tags=_TAGS)
    try:
        return _instance(path, dataset)
    except Unusable:
        raise
    except TooLarge as e:
        raise Unusable(str(e), "export a part of it") from e
    except Exception as e:  # values that are not what their tag says
        raise Unusable("has values that are not valid DICOM", "export it again, or remove it") from e


def _instance(path: Path, d: Any) -> Instance:
    syntax = str(getattr(d.file_meta, "TransferSyntaxUID", "1.2.840.10008.1.2"))
    uid, series, study = (str(d.get(f"{name}InstanceUID") or "") for name in ("SOP", "Series", "Study"))
    if (not uid or not series) and str(d.SOPClassUID) != DICOMDIR:
        raise Unusable("names no series", "export it again with its UIDs")
    rows, columns = int(d.get("Rows") or 0), int(d.get("Columns") or 0)
    shown = rows and columns and str(d.SOPClassUID) != RTDOSE
    frames = int(d.get("NumberOfFrames") or 1) if shown else 0
    samples, allocated = int(d.get("SamplesPerPixel") or 1), int(d.get("BitsAllocated") or 8)
    if not frames and pydicom().uid.UID(d.SOPClassUID).name.endswith("Image Storage"):
        raise Unusable(DAMAGED, "export it again, or remove it")
    if frames:
        _check_size(path, syntax, rows, columns, frames, samples, allocated)
    mask = str(d.SOPClassUID) in (SEG, LABELMAP)
    return Instance(
        path, str(d.SOPClassUID), uid, str(d.get("PatientID") or study or series), study, series,
        str(d.get("FrameOfReferenceUID") or ""), str(d.get("Modality") or ""), syntax,
        int(d.get("SeriesNumber") or 0), "LOCALIZER" in [str(word).upper() for word in d.get("ImageType") or ()],
        rows, columns, frames, samples, int(d.get("BitsStored") or allocated),
        () if mask or not frames else planes_of(d, frames),
    )  # fmt: skip


def _check_size(path: Path, syntax: str, rows: int, columns: int, frames: int, samples: int, allocated: int) -> None:
    if samples not in (1, 3, 4) or allocated not in (1, 8, 16, 32, 64) or not 0 < frames <= _MOST_FRAMES:
        raise Unusable("has values that are not valid DICOM", "export it again, or remove it")
    if rows * columns > PICTURE_PIXELS:
        raise TooLarge(f"{columns} x {rows} pixels, the limit is {PICTURE_PIXELS / 1e6:g} million")
    check_volume([columns, rows, frames, samples], 8)
    stored = rows * columns * frames * samples * allocated // 8
    if syntax in _NATIVE and syntax != _DEFLATED and samples == 1 and path.stat().st_size < stored:
        raise Unusable(DAMAGED, "export it again, or remove it")


def is_deflated(file: BinaryIO) -> bool:
    """Whether a DICOM file is deflated as a whole; it is then read up to where that begins."""
    if file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] != _MAGIC:
        return False
    meta = pydicom().filereader._read_file_meta_info(file)
    return str(meta.get("TransferSyntaxUID", "")) == _DEFLATED


def _check_deflated(path: Path) -> None:
    """pydicom inflates such a file as a whole: its size is counted first, with little memory."""
    with path.open("rb") as f:
        if not is_deflated(f):
            return
        inflate, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while block := inflate.unconsumed_tail or f.read(65536):
            size += len(inflate.decompress(block, 2**20))
            if size > _INFLATED_BYTES:
                raise TooLarge(f"more than {_INFLATED_BYTES / 1024**3:g} GiB when inflated")
