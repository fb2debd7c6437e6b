"""A predicted mask as DICOM-SEG: in the source's patient, study and frame of reference, label by label."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsm.core.task_settings import LabelCode, TaskSettings
from fedsm.data.contact_sheet import COLOURS
from fedsm.data.dicom.clip import lend_positions, take_positions
from fedsm.data.dicom.header import open_file
from fedsm.data.dicom.library import highdicom
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.sources import Origin

MAKER = "FedSM"
WARNING = "Not for clinical use"
_PRIVATE = "99FEDSM"
_SERIES_STEP = 9000  # added to the source's series number
_MOST = 64  # characters of a DICOM text
_CATEGORIES = {
    "anatomical": ("91723000", "Anatomical Structure"),
    "abnormal": ("49755003", "Morphologically Abnormal Structure"),
    "tissue": ("85756007", "Tissue"),
}
# Every DICOM image has them, perhaps empty: what other programs left out is filled in.
_MUST_BE_THERE = [
    "PatientID",
    "PatientName",
    "PatientBirthDate",
    "PatientSex",
    "AccessionNumber",
    "StudyID",
    "StudyDate",
    "StudyTime",
    "ReferringPhysicianName",
]


def make_seg(labels: np.ndarray, image: DicomImage, origin: Origin) -> Any:
    """A DICOM-SEG with a segment for each label, as a dataset.

    Every frame of the image is in it, empty ones too, so that each program finds the whole grid.

    Args:
        labels: (L, frames, H, W) bool, in the order of `image.frames`.
        image: what was segmented.
        origin: what made the mask.

    Raises:
        Unusable: the image's header is such that none can be made.
    """
    hd = highdicom()
    try:
        return _segmentation(hd, labels, image, origin)
    except Unusable:
        raise
    except Exception as e:  # highdicom refuses in many ways what other programs wrote; its words quote values
        raise Unusable("has a header for which no DICOM-SEG can be made", "export it again") from e


def _segmentation(hd: Any, labels: np.ndarray, image: DicomImage, origin: Origin) -> Any:
    sources = source_headers(image)
    if len(sources) == 1:  # a file of several frames: in the file's order
        labels = labels[:, np.argsort([frame.index for frame in image.frames])]
    clip = not image.volume and len(image.frames) > 1
    if clip:
        lend_positions(hd, sources[0])
    seg = hd.seg.Segmentation(
        source_images=sources,
        pixel_array=np.ascontiguousarray(labels.transpose(1, 2, 3, 0).astype(np.uint8)),
        segmentation_type="BINARY",
        segment_descriptions=[_segment(hd, i, label, origin) for i, label in enumerate(origin.task.labels)],
        omit_empty_frames=False,
        pixel_measures=_measures(hd, image),
        content_label=MAKER.upper(),
        content_description=WARNING,
        **series_tags(hd, image, origin),
        manufacturer_model_name=f"{MAKER} super model",
        software_versions=origin.software,
        device_serial_number=origin.super_model,
    )
    if clip:
        take_positions(seg)
    seg.ContentCreatorName = None  # must be there, and nobody is named
    seg.SeriesDescription = series_description(origin.task)
    return seg


def source_headers(image: DicomImage) -> list[Any]:
    """The headers of the image's files in the order of its frames, with everything that a copy needs."""
    headers = []
    for path in image.files:
        header = open_file(path, stop_before_pixels=True)
        for name in _MUST_BE_THERE:
            if name not in header:
                setattr(header, name, None)
        if not image.volume and "FrameOfReferenceUID" in header:
            del header.FrameOfReferenceUID  # without a geometry it says nothing
        headers.append(header)
    return headers


def series_tags(hd: Any, image: DicomImage, origin: Origin) -> dict[str, Any]:
    """What every object that we write says about its series."""
    return {
        "series_instance_uid": hd.UID(),
        "series_number": _SERIES_STEP + min(max(0, image.first.number), 10**6),
        "sop_instance_uid": hd.UID(),
        "instance_number": 1,
        "manufacturer": MAKER,
    }


def series_description(task: TaskSettings) -> str:
    """Shown by every viewer."""
    return f"{WARNING} - {MAKER} {task.name}"[:_MOST]


def _segment(hd: Any, index: int, label: str, origin: Origin) -> Any:
    code = origin.task.codes.get(label) or LabelCode(code=label[:16], scheme=_PRIVATE, meaning=label)
    value, meaning = _CATEGORIES[code.category]
    algorithm = hd.AlgorithmIdentificationSequence(
        name=f"{MAKER} {origin.task.name}"[:_MOST],
        family=_code(hd, "123110", "DCM", "Artificial Intelligence"),
        version=origin.super_model[:_MOST],
        source=MAKER,
        parameters={"model": origin.model, "software": f"fedsm {origin.software}"},
    )
    return hd.seg.SegmentDescription(
        segment_number=index + 1,
        segment_label=label,
        segmented_property_category=_code(hd, value, "SCT", meaning),
        segmented_property_type=_code(hd, code.code, code.scheme, code.meaning),
        algorithm_type="AUTOMATIC",
        algorithm_identification=algorithm,
        tracking_uid=hd.UID(),
        tracking_id=label,
        display_color=hd.color.CIELabColor.from_rgb(*COLOURS[index % len(COLOURS)]),
    )


def _code(hd: Any, value: str, scheme: str, meaning: str) -> Any:
    return hd.sr.CodedConcept(value, scheme, meaning)


def _measures(hd: Any, image: DicomImage) -> Any:
    if image.affine is None:
        return None
    columns, rows, slices = (float(step) for step in np.linalg.norm(image.affine[:3, :3], axis=0))
    return hd.PixelMeasuresSequence((rows, columns), slices, slices)
