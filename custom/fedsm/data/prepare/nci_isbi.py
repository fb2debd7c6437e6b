"""NCI-ISBI 2013: T2 as DICOM from TCIA, zones as NRRD; Prostate-3T (3 T) and PROSTATE-DIAGNOSIS (1.5 T) are two sites.

Layout as NBIA Data Retriever and the challenge's zips create it, described by NVFlare's prostate example. The masks
decide which cases are taken: the TCIA collections hold more patients than were segmented. ProstateDx-01-0055 has fewer
slices in its mask than in its image; the challenge's page says that its position is right, and masks are placed by
position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.data.prepare.itk import prepared, read_series, read_volume
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, files_below, index, missing_layout


def _pairs(name: str, prefix: str, raw: Path, readers: str) -> Iterator[Prepared]:
    files = files_below(raw)
    case = rf"({prefix}-\d+-\d+)"
    masks = index(files, case + r"(?:_truth)?\.nrrd", name)
    masks |= index(files, case + r"_corrected.*\.nrrd", name)  # replaces the first version of ProstateDx-01-0006
    series: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(f.parent for f in files if f.suffix.lower() == ".dcm"):
        for part in folder.relative_to(raw).parts:
            if re.fullmatch(case, part, re.IGNORECASE):
                series.setdefault(part.lower(), []).append(folder)
    if not masks or not series:
        missing = f"masks {prefix}-01-NNNN.nrrd" if not masks else f"DICOM folders {prefix}-01-NNNN/study/series"
        raise missing_layout(name, raw, missing)
    for key, mask in masks.items():
        if key not in series:
            raise UserError(f"{name}: {mask} has no DICOM folder {key}", remedy="download it or remove the mask")
        image = read_series(axial_t2(series[key], mask, name), name)
        stem = mask.name[: len(key)]  # as it is written there
        yield prepared(stem, image, read_volume(mask, name), mask, name)


def axial_t2(folders: list[Path], mask: Path, source: str) -> Path:
    """The series of a case; of several the one whose name says axial T2.

    Raises:
        UserError: there is no such series, or several.
    """
    named = [f for f in folders if re.search(r"t2.*(tra|ax)", f.name, re.IGNORECASE)] if len(folders) > 1 else folders
    if len(named) != 1:
        raise UserError(
            f"{source}: {len(folders)} DICOM series for {mask} ({', '.join(f.name for f in folders)})",
            remedy="keep the axial T2 series only",
        )
    return named[0]


def _source(name: str, prefix: str, collection: str) -> Source:
    return Source(
        name=name,
        site=name,
        task="prostate",
        where="NCI-ISBI 2013 Challenge, The Cancer Imaging Archive: DICOM by NBIA Data Retriever, masks as zip:"
        " https://www.cancerimagingarchive.net/analysis-result/isbi-mr-prostate-2013/",
        terms="TCIA data usage policy; see the source's page",
        layout=f"""\
manifest-*/{collection}/{prefix}-01-0001/<study>/<series>/1-01.dcm ...
Training/{prefix}-01-0001.nrrd   Leaderboard/...nrrd   Test/{prefix}-01-0031_truth.nrrd
(the other collection may lie there too; the paper counts 35 volumes a site, all three parts hold 40)""",
        rule="one reader: peripheral zone (1) and central gland (2) together are the gland",
        checked=UNCHECKED + "; relies on the NRRD headers' positions",
        pairs=partial(_pairs, name, prefix),
    )


SOURCES = (
    _source("nci-isbi-3t", "Prostate3T", "Prostate-3T"),
    _source("nci-isbi-dx", "ProstateDx", "PROSTATE-DIAGNOSIS"),
)
