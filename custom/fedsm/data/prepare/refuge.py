"""REFUGE: 1200 fundus pictures with one merged mask each: 0 cup, 128 disc rim, 255 background.

Layout of the challenge's archives as listed by bob.ip.binseg and MMSegmentation; the re-packed REFUGE2 folders
have the same `Disc_Cup_Masks` and are found as well. `AMD` and `Non-AMD` belong to another challenge: left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsm.data.prepare.pictures import read_picture
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, index, missing_layout

_FOREIGN = re.compile(r"(Non-)?AMD", re.IGNORECASE)
# Pictures next to the masks are illustrations with the outlines painted in, never inputs.
_ANNOTATION = re.compile(r".*(annotation|illustration|masks|-GT$).*", re.IGNORECASE)
_NAME = r"([gnvt]\d{4})"


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    name = "refuge"
    pictures, masks = [], []
    for path in files_below(raw):
        folders = path.relative_to(raw).parts[:-1]
        if any(_FOREIGN.fullmatch(f) for f in folders):
            continue
        if any(f.lower() == "disc_cup_masks" for f in folders):
            masks.append(path)
        elif not any(_ANNOTATION.fullmatch(f) for f in folders):
            pictures.append(path)
    parts = {
        "picture": index(pictures, _NAME + r"\.jpe?g", name),
        "mask in Disc_Cup_Masks": index(masks, _NAME + r"\.(?:bmp|png)", name),
    }
    if not all(parts.values()):
        raise missing_layout(name, raw, "g0001.jpg, n0001.jpg, ... with Disc_Cup_Masks/**/g0001.bmp, ...")
    for case in check_complete(name, parts):
        picture, mask = (found[case] for found in parts.values())
        grey = read_picture(mask, "L", name)
        # Nearest of 0, 128 and 255: resaved copies have values in between.
        yield Prepared(picture.stem, picture, (grey < 192).astype(np.uint8) + (grey < 64))


SOURCES = (
    Source(
        name="refuge",
        site="refuge",
        task="retinal",
        where="REFUGE challenge (registration): https://refuge.grand-challenge.org",
        terms="see the source's page",
        layout="""\
Training400/Glaucoma/g0001.jpg         Training400/Non-Glaucoma/n0001.jpg
Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001.bmp   .../Non-Glaucoma/n0001.bmp
REFUGE-Validation400/V0001.jpg         REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp
Test400/T0001.jpg                      REFUGE-Test-GT/Disc_Cup_Masks/G/T0001.bmp   .../N/T0002.bmp
(any of the three parts may be left out; the paper counts 800 pictures, two parts)""",
        rule="the organisers' merged mask: 0 -> cup, 128 -> disc rim, 255 -> background",
        checked=UNCHECKED,
        pairs=_pairs,
    ),
)
