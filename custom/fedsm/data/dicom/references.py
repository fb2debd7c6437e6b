"""Which images the masks of a folder belong to.

DICOM-SEG and RTSTRUCT say it themselves. A NIfTI volume or a picture says it by its name: that of the image's file or
folder, or the UID of its series or instance, or the PatientID or study UID where these have one image only. `_mask`,
`-mask`, `_seg` or `-seg` may follow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from fedsm.data.dicom.header import Instance, open_file
from fedsm.data.dicom.scan import FILE, OTHER, Found, Problem
from fedsm.data.dicom.series import DicomImage
from fedsm.data.dicom.unusable import Unusable
from fedsm.data.readers import VOLUMES, is_supported, stem, suffix

_ENDING = re.compile(r"[-_](mask|seg)$", re.IGNORECASE)
_OURS = "FedSM"  # of the manufacturer: a prediction is no ground truth


@dataclass
class Masks:
    """The masks of one image: DICOM objects, and files beside it."""

    objects: list[Instance] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def assign(found: Found) -> tuple[dict[str, Masks], list[Problem]]:
    """The masks of each image, by its `uid`, and the masks that belong to none."""
    masks: dict[str, Masks] = defaultdict(Masks)
    problems = []
    for one in found.masks:
        try:
            images = _referenced(one, found.images)
        except Unusable as e:
            kind = OTHER if e.reason == _PREDICTED else FILE
            problems.append(Problem(kind, one.path, e.reason, e.remedy))
            continue
        for image in images:
            masks[image.uid].objects.append(one)
        if not images:
            problems.append(Problem(OTHER, one.path, "is a mask of an image that is not here", "bring the image too"))
    names = _names(found.images)
    for path in found.others:
        if not is_supported(path):
            continue
        fitting = [image for image in names.get(_ENDING.sub("", stem(path)), ()) if _same_kind(path, image)]
        if len(fitting) == 1:
            masks[fitting[0].uid].files.append(path)
        else:
            problems.append(Problem(OTHER, path, "names no image", "name it after its image's file, folder or series"))
    return masks, problems


_PREDICTED = "is a prediction of FedSM, not a mask"


def _referenced(mask: Instance, images: list[DicomImage]) -> list[DicomImage]:
    dataset = open_file(mask.path, stop_before_pixels=True)
    if str(dataset.get("Manufacturer") or "") == _OURS:
        raise Unusable(_PREDICTED, "nothing to do; correct it and save it with another program to use it")
    series, instances = set(), set()
    try:
        for element in dataset.iterall():
            if element.keyword == "ReferencedSOPInstanceUID":
                instances.add(str(element.value))
            elif element.keyword == "SeriesInstanceUID":
                series.add(str(element.value))
    except Exception as e:  # a sequence that is none
        raise Unusable("is a mask that cannot be read", "export it again") from e
    by_instance = [i for i in images if any(frame.instance.uid in instances for frame in i.frames)]
    by_series = [i for i in images if i.first.series in series - {mask.series}]
    place = mask.frame_of_reference
    by_place = [i for i in images if i.volume and place and i.first.frame_of_reference == place]
    return by_instance or by_series or (by_place if len(by_place) == 1 else [])


def _names(images: list[DicomImage]) -> dict[str, list[DicomImage]]:
    names: dict[str, list[DicomImage]] = defaultdict(list)
    folders: dict[Path, list[DicomImage]] = defaultdict(list)
    for image in images:
        own = {image.first.series, image.first.patient, image.first.study}
        if len(image.files) == 1:
            own |= {image.first.uid, image.first.path.name, image.first.path.stem}
        for name in own:
            names[name].append(image)
        for folder in {path.parent for path in image.files}:
            folders[folder].append(image)
    for folder, inside in folders.items():
        names[folder.name] += [image for image in inside if image not in names[folder.name]]
    return names


def _same_kind(path: Path, image: DicomImage) -> bool:
    return (suffix(path) in VOLUMES) == image.volume and (image.volume or len(image.frames) == 1)
