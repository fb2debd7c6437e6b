"""PROSTATEx: T2 as DICOM from TCIA or as NIfTI, gland masks of github.com/rcuocolo/PROSTATEx_masks (204 cases).

The mask repository's `image_list.csv` says which of a patient's T2 series was segmented: the number with which the
series' folder begins. The masks decide which cases are taken: TCIA holds more patients. Some masks have three digits in
their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.data.prepare.itk import prepared, read_series, read_volume
from fedsm.data.prepare.nci_isbi import axial_t2
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, files_below, missing_layout

_NAME = "prostatex"
_CASE = re.compile(r"ProstateX-(\d+)", re.IGNORECASE)
_NIFTI = re.compile(r"ProstateX-\d+.*t2.*tra.*\.nii(\.gz)?", re.IGNORECASE)
_LISTED = re.compile(r"ProstateX-(\d+)_t2\w*_(\d+)\s*$", re.IGNORECASE | re.MULTILINE)


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    masks: dict[int, Path] = {}
    volumes: dict[int, Path] = {}
    series: dict[int, list[Path]] = {}
    listed: dict[int, int] = {}
    for path in files_below(raw):
        folders = path.relative_to(raw).parts[:-1]
        case = _CASE.match(path.name)
        if "lesions" in (f.lower() for f in folders):
            continue  # the same repository's lesion masks and their images
        if path.name.lower() == "image_list.csv":
            listed |= {int(n): int(number) for n, number in _LISTED.findall(path.read_text("utf-8", errors="replace"))}
        elif path.suffix.lower() == ".dcm":
            patient = next((m for f in folders if (m := _CASE.fullmatch(f))), None)
            if patient and path.parent not in series.setdefault(int(patient[1]), []):
                series[int(patient[1])].append(path.parent)
        elif case and path.parent.name.lower() == "mask_prostate":
            masks[int(case[1])] = path
        elif case and _NIFTI.fullmatch(path.name) and not path.parent.name.lower().startswith("mask"):
            volumes[int(case[1])] = path
    if not masks:
        raise missing_layout(_NAME, raw, "masks mask_prostate/ProstateX-NNNN.nii.gz (rcuocolo/PROSTATEx_masks)")
    for number, mask in masks.items():
        if number in volumes:
            image = read_volume(volumes[number], _NAME)
        elif number in series:
            image = read_series(_chosen(series[number], listed.get(number), mask), _NAME)
        else:
            raise UserError(
                f"{_NAME}: {mask} has no image: neither ProstateX-{number:04d}_t2_tse_tra_*.nii.gz nor a DICOM folder"
                f" ProstateX-{number:04d}",
                remedy="download it or remove the mask",
            )
        yield prepared(f"ProstateX-{number:04d}", image, read_volume(mask, _NAME), mask, _NAME)


def _chosen(folders: list[Path], number: int | None, mask: Path) -> Path:
    """The series that image_list.csv names (folder `4.000000-t2tsetra-00702` has number 4)."""
    numbered = [f for f in folders if number is not None and re.match(rf"0*{number}\.", f.name)]
    return axial_t2(numbered or folders, mask, _NAME)


SOURCES = (
    Source(
        name=_NAME,
        site=_NAME,
        task="prostate",
        where="images: PROSTATEx, The Cancer Imaging Archive, https://www.cancerimagingarchive.net/collection/prostatex/;"
        " masks: https://github.com/rcuocolo/PROSTATEx_masks",
        terms="masks CC BY 4.0; images see the source's page",
        layout="""\
PROSTATEx_masks/Files/prostate/mask_prostate/ProstateX-0000.nii.gz
PROSTATEx_masks/Files/prostate/image_list.csv
PROSTATEx/ProstateX-0000/<study>/4.000000-t2tsetra-00702/1-01.dcm ...
  or .../ProstateX-0000_t2_tse_tra_4.nii.gz""",
        rule="one reader: every value above 0 is gland",
        checked=UNCHECKED + "; the paper's 99 volumes are fewer than these masks: which ones is not known,"
        " and TCIA's DICOM SEG masks (98 cases in NVFlare's example) are not read here",
        pairs=_pairs,
    ),
)
