"""The pixels of DICOM files as the numbers that they stand for: rescaled, uninverted, RGB."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from fedsm.data.dicom.header import DAMAGED, open_file
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.limits import PICTURE_PIXELS

_WHOLE = np.iinfo(np.int16)
# Start of a codestream's size: JPEG 2000 and HTJ2K (SIZ after SOC); JPEG and JPEG-LS frame headers.
_J2K = b"\xff\x4f\xff\x51"
_NOT_FRAMES = (0xC4, 0xC8, 0xCC)


def read_frames(path: Path) -> np.ndarray:
    """All frames of a file: (frames, H, W, samples); whole numbers where the file's numbers are.

    Values are those of the modality (rescale slope and intercept, or its table), MONOCHROME1 is inverted, colour of
    any kind becomes RGB.

    Raises:
        Unusable: damaged, or of a kind that is not read.
    """
    dataset = open_file(path)
    try:
        _check_codestreams(dataset)
        return _frames(dataset)
    except Unusable:
        raise
    except MemoryError as e:
        raise Unusable("does not fit into memory", "export a part of it") from e
    except (NotImplementedError, RuntimeError) as e:
        if _can_decode(dataset) and "not support" not in str(e):
            raise Unusable(DAMAGED, "export it again, or remove it") from e
        raise Unusable(
            "is compressed in a way that no installed package reads", "export it uncompressed or as JPEG 2000"
        ) from e
    except Exception as e:  # every decoder has its own exceptions
        raise Unusable(DAMAGED, "export it again, or remove it") from e


def _frames(d: Any) -> np.ndarray:
    from pydicom.pixels import apply_color_lut, apply_modality_lut, pixel_array

    array = pixel_array(d)  # YBR becomes RGB here
    count, samples = int(d.get("NumberOfFrames") or 1), int(d.get("SamplesPerPixel") or 1)
    kind = str(d.get("PhotometricInterpretation", ""))
    array = array.reshape(count, int(d.Rows), int(d.Columns), samples)
    if kind == "PALETTE COLOR":
        return _bytes(np.stack([apply_color_lut(frame[..., 0], d) for frame in array])[..., :3])
    if samples > 1:
        return _bytes(array[..., :3])
    if kind == "MONOCHROME1":
        bits = int(d.BitsStored)
        array = -1 - array if d.PixelRepresentation else np.array(2**bits - 1, array.dtype) - array
    if d.get("ModalityLUTSequence"):
        return _compact(apply_modality_lut(array, d))
    slopes, shifts = (values.reshape(-1, 1, 1, 1) for values in _scales(d, count))
    return array if (slopes == 1).all() and (shifts == 0).all() else _compact(array * slopes + shifts)


def _scales(d: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept of each frame; of an enhanced image they may differ."""
    name = "PixelValueTransformationSequence"
    shared = (d.get("SharedFunctionalGroupsSequence") or [{}])[0]
    each = d.get("PerFrameFunctionalGroupsSequence") or []
    groups = [frame.get(name) or shared.get(name) for frame in each] if len(each) == count else []
    holders = [group[0] for group in groups] if groups and all(groups) else [d] * count
    slopes = np.array([float(h.get("RescaleSlope") or 1) for h in holders])
    return slopes, np.array([float(h.get("RescaleIntercept") or 0) for h in holders])


def _compact(values: np.ndarray) -> np.ndarray:
    """int16, as scanners store it, if nothing is lost; otherwise float32."""
    fits = values.min() >= _WHOLE.min and values.max() <= _WHOLE.max and (values == np.round(values)).all()
    return values.astype(np.int16 if fits else np.float32)


def _bytes(colour: np.ndarray) -> np.ndarray:
    """Colour as uint8: palettes hold 16 bits of which the lower ones only repeat."""
    return colour if colour.dtype == np.uint8 else (colour >> 8 * (colour.itemsize - 1)).astype(np.uint8)


def _can_decode(d: Any) -> bool:
    from pydicom.pixels import get_decoder

    try:
        return (
            not d.file_meta.TransferSyntaxUID.is_compressed or get_decoder(d.file_meta.TransferSyntaxUID).is_available
        )
    except (NotImplementedError, AttributeError, KeyError):
        return False


def _check_codestreams(d: Any) -> None:
    """Refuses compressed frames that are larger than their header says: decoders make room before they look."""
    syntax = getattr(d.file_meta, "TransferSyntaxUID", None)
    if syntax is None or not syntax.is_encapsulated or "PixelData" not in d:
        return
    from pydicom.encaps import generate_frames

    for frame in generate_frames(d.PixelData, number_of_frames=int(d.get("NumberOfFrames") or 1)):
        size = codestream_size(frame)
        if size and size[0] * size[1] > min(PICTURE_PIXELS, 4 * int(d.Rows) * int(d.Columns) + 4096):
            raise Unusable("holds more pixels than its header says", "export it again, or remove it")


def codestream_size(frame: bytes) -> tuple[int, int] | None:
    """Width and height that a JPEG, JPEG-LS or JPEG 2000 frame gives itself; None: it does not say (RLE)."""
    at = frame.find(_J2K, 0, 4096)
    if at >= 0:
        width, height, left, top = struct.unpack_from(">4I", frame, at + 8)
        return max(0, width - left), max(0, height - top)
    at = 2 if frame[:2] == b"\xff\xd8" else len(frame)
    while at + 9 < len(frame):
        if frame[at] != 0xFF:
            return None
        marker, length = frame[at + 1], int.from_bytes(frame[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_FRAMES or marker == 0xF7:
            height, width = struct.unpack_from(">2H", frame, at + 5)
            return width, height
        at += 2 + length if marker != 0xFF else 1
    return None
