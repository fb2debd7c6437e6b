"""PROMISE12: 50 training cases of several centres as MetaImage. Test folders have no reference and are not read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fedsm.data.prepare.itk import prepared, read_volume
from fedsm.data.prepare.source import UNCHECKED, Prepared, Source, check_complete, files_below, index, missing_layout

_TEST = re.compile(r"(?:^|[^a-z])test", re.IGNORECASE)  # a word's beginning: 'latest' is no test folder


def _pairs(raw: Path, readers: str) -> Iterator[Prepared]:
    name = "promise12"
    files = [f for f in files_below(raw) if not _TEST.search(str(f.relative_to(raw).parent))]
    parts = {
        "image CaseNN.mhd": index(files, r"(Case\d+)\.mhd", name),
        "segmentation CaseNN_segmentation.mhd": index(files, r"(Case\d+)_segmentation\.mhd", name),
    }
    if not any(parts.values()):
        raise missing_layout(name, raw, "CaseNN.mhd with CaseNN_segmentation.mhd")
    for case in check_complete(name, parts):
        image, mask = (found[case] for found in parts.values())
        yield prepared(image.stem, read_volume(image, name), read_volume(mask, name), mask, name)


SOURCES = (
    Source(
        name="promise12",
        site="promise12",
        task="prostate",
        where="PROMISE12 challenge, training data parts 1-3 (registration): https://promise12.grand-challenge.org",
        terms="see the source's page",
        layout="""\
TrainingData_Part1/Case00.mhd  Case00.raw  Case00_segmentation.mhd  Case00_segmentation.raw
TrainingData_Part2/...         (or all in one folder; folders named test* are left alone)""",
        rule="one reader: every value above 0 is gland",
        checked=UNCHECKED,
        pairs=_pairs,
    ),
)
