"""RIM-ONE release 3: 159 stereo pictures, two readers and their average.

Release 3 and not RIM-ONE DL: its 159 pictures are a site of the paper. Folder and file names are those of the
release's own README and of bob.ip.binseg's file lists. Left and right view lie side by side in one JPEG; the masks
belong to the left one, so the left half is taken of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.data.prepare.pictures import join, read_picture
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, index, missing_layout

_CASE = r"([A-Z]-\d+-[LR])"
_ENDINGS = {"majority": r"-{0}-Avg\.png", "first": r"(?:-\d)?-{0}-exp1\.png"}


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    files, name, ending = files_below(raw), "rim-one", _ENDINGS[readers]
    parts = {
        "picture in 'Stereo Images'": index(files, _CASE + r"\.jpe?g", name),
        "disc mask": index(files, _CASE + ending.format("Disc"), name),
        "cup mask": index(files, _CASE + ending.format("Cup"), name),
    }
    if not all(parts.values()):
        masks = "Average_masks/*-Disc-Avg.png" if readers == "majority" else "Expert1_masks/*-Disc-exp1.png"
        raise missing_layout(name, raw, f"'Stereo Images/*.jpg' with {masks} (RIM-ONE r3)")
    for case in check_complete(name, parts):
        picture, *drawn = (found[case] for found in parts.values())
        image = _left(read_picture(picture, "RGB", name))
        disc, cup = (_left(read_picture(path, "L", name)) > 127 for path in drawn)
        if not disc.shape == cup.shape == image.shape[:2]:
            raise UserError(f"{name}: {drawn[0]} and {picture} differ in size", remedy="download them again")
        yield Prepared(picture.stem, image, join(disc, cup))


def _left(picture: np.ndarray) -> np.ndarray:
    """The left view of a stereo pair (2144 x 1424); a single view is upright and stays as it is."""
    height, width = picture.shape[:2]
    return picture[:, : width // 2] if width > height else picture


SOURCES = (
    Source(
        name="rim-one",
        site="rim-one",
        task="retinal",
        where="RIM-ONE r3, Medical Image Analysis Group, University of La Laguna: http://medimrg.webs.ull.es",
        terms="research only, no redistribution (the release's README); see the source's page",
        layout="""\
RIM-ONE r3/
  Healthy/Stereo Images/N-10-R.jpg
  Healthy/Average_masks/N-10-R-Disc-Avg.png      N-10-R-Cup-Avg.png
  Healthy/Expert1_masks/N-10-R-1-Disc-exp1.png   N-10-R-1-Cup-exp1.png
  Glaucoma and suspects/...""",
        rule="majority: the authors' average of both readers (what both marked would be too small); first: reader 1",
        checked=UNCHECKED + "; bob.ip.binseg says that the masks belong to the left view",
        pairs=_pairs,
        readers=("majority", "first"),
    ),
)
