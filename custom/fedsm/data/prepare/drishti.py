"""Drishti-GS1: 101 fundus pictures with the average of four readers as soft maps.

The layout is the one that public loaders of `Drishti-GS1_files.zip` use (e.g. bob.ip.binseg). Some copies have
another `Drishti-GS1_files` level or sort the pictures into `GLAUCOMA` and `NORMAL`: files are found by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedsm.data.prepare.pictures import join, read_picture
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, index, missing_layout

# A soft map is the mean of four readers: 0, 64, 128, 191 or 255. Half way between two and three of them.
_THREE_OF_FOUR = 255 * 0.625


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    files, name = files_below(raw), "drishti-gs1"
    parts = {
        "picture drishtiGS_NNN.png": index(files, r"(drishtiGS_\d+)\.png", name),
        "disc map *_ODsegSoftmap.png": index(files, r"(drishtiGS_\d+)_ODsegSoftmap\.png", name),
        "cup map *_cupsegSoftmap.png": index(files, r"(drishtiGS_\d+)_cupsegSoftmap\.png", name),
    }
    if not any(parts.values()):
        raise missing_layout(name, raw, "drishtiGS_NNN.png and drishtiGS_NNN_ODsegSoftmap.png")
    for case in check_complete(name, parts):
        picture, *maps = (found[case] for found in parts.values())
        disc, cup = (read_picture(path, "L", name) > _THREE_OF_FOUR for path in maps)
        yield Prepared(picture.stem, picture, join(disc, cup))


SOURCES = (
    Source(
        name="drishti-gs1",
        site="drishti-gs1",
        task="retinal",
        where="Drishti-GS1, CVIT, IIIT Hyderabad (registration): "
        "https://cvit.iiit.ac.in/projects/mip/drishti-gs/mip-dataset2/Home.php",
        terms="see the source's page",
        layout="""\
Drishti-GS1_files/
  Training/Images/drishtiGS_002.png
  Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_ODsegSoftmap.png
  Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_cupsegSoftmap.png
  Test/Images/drishtiGS_001.png
  Test/Test_GT/drishtiGS_001/SoftMap/...""",
        rule="majority of four readers: at least three (the single readers are not published)",
        checked=UNCHECKED + "; the soft maps' grey levels (multiples of 255/4) are taken from their description",
        pairs=_pairs,
    ),
)
