"""RIGA: 750 fundus pictures of three origins, outlines of six ophthalmologists drawn on copies of each picture.

`imageNprime` is the picture, `imageN-1` ... `imageN-6` the copies with outlines of disc and cup. Layout and flaws are
those that public loaders describe: endings are mixed, MagrabiaMale has `ImageN-1` with a capital, the folder
`BinRushed1` was replaced by `BinRushed1-Corrected`, `MagrabiFemale/image48` has no picture, and in a few copies the
lines are too faint to be found. See `outlines.py` for how lines become areas.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.data.prepare.itk import simple_itk
from fedsm.data.prepare.outlines import trace
from fedsm.data.prepare.pictures import join, majority, read_picture
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, files_below, missing_layout

_log = logging.getLogger(__name__)
_NAME = re.compile(r"image *(\d+) *(?:(prime)|- *([1-6]))\.(?:tiff?|jpe?g|png|bmp)", re.IGNORECASE)
_ORIGIN = re.compile(r"(binrushed|magrabi|messidor)", re.IGNORECASE)
_NO_PICTURE = {("magrabifemale", 48)}
_AT_LEAST = 3  # readers whose lines must be found for a majority


def _pairs(origin: str, raw: Path, readers: str) -> Iterator[Prepared]:
    name = f"riga-{origin}"
    cases = _cases(origin, raw, name)
    if not cases:
        raise missing_layout(name, raw, f"image1prime.* with image1-1.* ... image1-6.* in a folder named {origin!r}")
    itk = simple_itk(name)
    for (folder, number), copies in cases.items():
        if 0 not in copies:
            if (folder.name.lower(), number) in _NO_PICTURE:
                continue
            some = next(iter(copies.values()))
            raise UserError(
                f"{name}: {some} has no picture image{number}prime.*", remedy="unpack it or remove the copies"
            )
        picture = copies.pop(0)
        original = read_picture(picture, "RGB", name)
        areas: list[tuple[np.ndarray, np.ndarray]] = []
        for reader in sorted(copies):
            drawn = read_picture(copies[reader], "RGB", name)
            if drawn.shape != original.shape:
                raise UserError(f"{name}: {copies[reader]} and {picture} differ in size", remedy="download both again")
            if found := trace(itk, original, drawn):
                areas.append(found)
            else:
                _log.warning("%s: reader left out, no two closed outlines in %s", name, copies[reader])
            if readers == "first" and areas:
                break
        if len(areas) < (1 if readers == "first" else _AT_LEAST):
            raise UserError(
                f"{name}: {picture} has {len(areas)} of 6 copies image{number}-1 ... -6 with closed outlines,"
                f" at least {_AT_LEAST} are needed",
                remedy="unpack the rest or remove the case",
            )
        disc, cup = (majority(list(area)) for area in zip(*areas, strict=True))
        yield Prepared(f"{folder.name}_image{number}".replace(" ", "_"), picture, join(disc, cup))


def _cases(origin: str, raw: Path, name: str) -> dict[tuple[Path, int], dict[int, Path]]:
    """(folder, number) -> reader -> file; reader 0 is the picture itself."""
    cases: dict[tuple[Path, int], dict[int, Path]] = {}
    for path in files_below(raw):
        match = _NAME.fullmatch(path.name)
        # The folder nearest to the file decides; RAW may be the folder of one origin or of all three.
        folders = (raw.absolute().name, *path.parent.relative_to(raw).parts)
        origins = [m[1].lower() for f in folders if (m := _ORIGIN.match(f))]
        if not match or not origins or not origin.startswith(origins[-1]):
            continue
        case = cases.setdefault((path.parent, int(match[1])), {})
        reader = 0 if match[2] else int(match[3])
        if reader in case and (path.parent.name.lower(), int(match[1])) not in _NO_PICTURE:
            raise UserError(f"{name}: {case[reader]} and {path} are the same case", remedy="keep one of them")
        case[reader] = path
    replaced = {f.name.lower() for f, _ in cases if f.name.lower() + "-corrected" in {g.name.lower() for g, _ in cases}}
    return {key: case for key, case in cases.items() if key[0].name.lower() not in replaced}


def _source(origin: str, layout: str) -> Source:
    return Source(
        name=f"riga-{origin}",
        site=f"riga-{origin}",
        task="retinal",
        where="RIGA, University of Michigan Deep Blue Data: "
        "https://deepblue.lib.umich.edu/data/concern/data_sets/3b591905z",
        terms="see the source's page",
        layout=layout,
        rule="majority: more than half of the readers whose outlines close (at least 3 of 6); a tie counts as outside;"
        " first: the first such reader",
        checked=UNCHECKED + "; thresholds for the lines were set on drawn examples, look at the masks",
        pairs=partial(_pairs, origin),
        readers=("majority", "first"),
    )


SOURCES = (
    _source(
        "binrushed",
        "BinRushed/BinRushed1-Corrected/image1prime.jpg   image1-1.jpg ... image1-6.jpg\n"
        "BinRushed/BinRushed2/...   BinRushed3/...   BinRushed4/...",
    ),
    _source(
        "magrabia",
        "Magrabia/MagrabiaMale/image1prime.tif   Image1-1.tif   image1-2.tif ... image1-6.tif\n"
        "Magrabia/MagrabiFemale/...",
    ),
    _source("messidor", "MESSIDOR/image1prime.tif   image1-1.tif ... image1-6.tif"),
)
