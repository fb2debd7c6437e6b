"""Writes a picture as DICOM secondary capture: every PACS shows it, also one that knows no DICOM-SEG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedsm.core.private_files import new_file
from fedsm.data.dicom.library import highdicom
from fedsm.data.dicom.seg_file import WARNING, series_description, series_tags, source_headers
from fedsm.data.dicom.series import DicomImage
from fedsm.data.sources import Origin

_EXPLICIT = "1.2.840.10008.1.2.1"


def write_capture(path: Path, picture: Image.Image, image: DicomImage, origin: Origin) -> None:
    """Writes a picture of a prediction in the patient and study of its image; folders above it are made."""
    hd = highdicom()
    source = source_headers(image)[0]
    tags = series_tags(hd, image, origin)
    capture = hd.sc.SCImage.from_ref_dataset(
        source,
        np.asarray(picture.convert("RGB")),
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=("L", "P"),
        transfer_syntax_uid=_EXPLICIT,
        specific_character_set=source.get("SpecificCharacterSet"),
        **(tags | {"series_number": tags["series_number"] + 1}),
    )
    capture.PatientOrientation = None  # slices side by side have none
    capture.SeriesDescription = series_description(origin.task)
    capture.ImageComments = f"{WARNING}. {origin.software}, super model {origin.super_model}, {origin.model}"
    if "BurnedInAnnotation" in source:
        capture.BurnedInAnnotation = source.BurnedInAnnotation
    capture.save_as(new_file(path))
