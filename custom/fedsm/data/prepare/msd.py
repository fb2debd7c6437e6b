"""Medical Segmentation Decathlon, Task05: 32 labelled prostates as 4D NIfTI (T2, ADC), zones as labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.data.limits import load_volume
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, index, missing_layout

_CASE = r"(prostate_\d+)\.nii(?:\.gz)?"


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    files, name = files_below(raw), "msd-task05"
    parts = {
        what: index([f for f in files if f.parent.name.lower() == folder], _CASE, name)
        for what, folder in (("image in imagesTr", "imagestr"), ("label in labelsTr", "labelstr"))
    }
    if not any(parts.values()):
        raise missing_layout(name, raw, "imagesTr/prostate_NN.nii.gz with labelsTr/prostate_NN.nii.gz")
    for case in check_complete(name, parts):
        paths = [found[case] for found in parts.values()]
        try:
            image, label = (load_volume(path) for path in paths)
            voxels, zones = (np.asanyarray(volume.dataobj) for volume in (image, label))
        except Exception as e:  # nibabel, gzip and numpy each have their own
            raise UserError(
                f"{name}: {paths[0]} or its label cannot be read ({e})", remedy="download both again"
            ) from e
        if voxels.ndim == 4:
            voxels = voxels[..., 0]
        if voxels.shape != zones.shape or not np.allclose(image.affine, label.affine, atol=1e-2):
            raise UserError(f"{name}: {paths[1]} is not on the grid of {paths[0]}", remedy="download both again")
        yield Prepared(case, voxels, zones > 0, image.affine)


SOURCES = (
    Source(
        name="msd-task05",
        site="msd-task05",
        task="prostate",
        where="Medical Segmentation Decathlon, Task05_Prostate.tar: http://medicaldecathlon.com",
        terms="CC BY-SA 4.0",
        layout="""\
Task05_Prostate/imagesTr/prostate_00.nii.gz    (4D: T2, ADC; T2 is taken)
Task05_Prostate/labelsTr/prostate_00.nii.gz    (1 peripheral zone, 2 transition zone)
(imagesTs has no labels and is left alone)""",
        rule="one reader: both zones together are the gland",
        checked=UNCHECKED,
        pairs=_pairs,
    ),
)
