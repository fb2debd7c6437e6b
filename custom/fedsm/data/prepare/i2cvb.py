"""I2CVB: 40 patients of two scanners (GE 1.5 T, Siemens 3 T), T2 and ground truth as DICOM.

Layout as in the authors' code (`T2W`, `GT/prostate`) and NVFlare's prostate example, which also says that Patient
428260 lacks a slice of its ground truth: left out. Image and mask are matched by the positions in the DICOM headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedsm.data.prepare.itk import prepared, read_series
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, missing_layout

_DEFECT = "428260"


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    name = "i2cvb"
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    for folder in dict.fromkeys(path.parent for path in files_below(raw)):
        here = folder.relative_to(raw).parts
        if here and here[-1].lower() == "t2w":
            images[_case(folder.parent)] = folder
        elif [f.lower() for f in here[-2:]] == ["gt", "prostate"]:
            masks[_case(folder.parent.parent)] = folder
    if not images or not masks:
        raise missing_layout(name, raw, "'Patient N/T2W/*.dcm' with 'Patient N/GT/prostate/*.dcm'")
    for case in check_complete(name, {"folder T2W": images, "folder GT/prostate": masks}):
        if _DEFECT not in case:
            yield prepared(case, read_series(images[case], name), read_series(masks[case], name), masks[case], name)


def _case(patient: Path) -> str:
    """`GE/Patient 383` to `GE_Patient_383`: numbers may repeat between the scanners."""
    return f"{patient.parent.name}_{patient.name}".replace(" ", "_")


SOURCES = (
    Source(
        name="i2cvb",
        site="i2cvb",
        task="prostate",
        where="I2CVB prostate, https://i2cvb.github.io, Zenodo record 162231;"
        " join the parts (cat siemens-3t* > s.tar.gz) and unpack",
        terms="see the source's page",
        layout="""\
GE/Patient 383/T2W/*.dcm
GE/Patient 383/GT/prostate/*.dcm
Siemens/Patient 1036/...
(the paper counts 19 volumes, as many as Siemens has; RAW may be that folder)""",
        rule="one reader: every value above 0 is gland",
        checked=UNCHECKED + "; the authors once worked with a ground truth in reversed slice order (GT_inv): look at"
        " some masks",
        pairs=_pairs,
    ),
)
