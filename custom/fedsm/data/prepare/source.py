"""What a source is and what it yields, and how sources find files below a raw download."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.natural_order import natural_key

UNCHECKED = "layout from documentation and public code; not checked against a real download"


@dataclass(frozen=True)
class Prepared:
    """One pair, ready to be written.

    Attributes:
        stem: the file name that image and mask share.
        image: a picture file to copy as it is, a picture (H, W, 3) or a volume (x, y, z).
        mask: (H, W) with 0 background, 1 disc rim, 2 cup, or (x, y, z) with 0 and 1.
        affine: voxel to RAS millimetres of both volumes; None for pictures.
    """

    stem: str
    image: Path | np.ndarray
    mask: np.ndarray
    affine: np.ndarray | None = None


@dataclass(frozen=True)
class Source:
    """A public data set that can become a site.

    Attributes:
        name: its name in `fedsm data prepare`.
        site: the site's folder.
        task: `retinal` or `prostate`.
        where: where to get it.
        terms: licence or terms of use.
        layout: drawing of the folders expected below RAW.
        rule: how annotations become one mask.
        checked: what could not be checked.
        pairs: (raw, readers) -> the pairs, one by one.
        readers: the values of `--readers` that the source supports.
    """

    name: str
    site: str
    task: str
    where: str
    terms: str
    layout: str
    rule: str
    checked: str
    pairs: Callable[[Path, str], Iterator[Prepared]]
    readers: tuple[str, ...] = ("majority",)


def files_below(raw: Path) -> list[Path]:
    """All visible files below a folder in natural order. Follows links (raw data are often elsewhere) but no loops."""
    found, seen = [], set()
    for folder, names, files in os.walk(raw, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            names.clear()
            continue
        seen.add(real)
        names[:] = [n for n in names if not n.startswith((".", "__MACOSX"))]
        found += [Path(folder, f) for f in files if not f.startswith(".")]
    return sorted(found, key=lambda p: natural_key(str(p)))


def index(files: Iterable[Path], pattern: str, source: str) -> dict[str, Path]:
    """Files whose whole name matches, by the pattern's first group in lower case.

    Raises:
        UserError: two files for one key.
    """
    regex = re.compile(pattern, re.IGNORECASE)
    found: dict[str, Path] = {}
    for path in files:
        if match := regex.fullmatch(path.name):
            key = match[1].lower()
            if key in found:
                raise UserError(f"{source}: {found[key]} and {path} are the same case", remedy="keep one of them")
            found[key] = path
    return found


def missing_layout(source: str, raw: Path, looked_for: str) -> UserError:
    """The error for a download that is missing."""
    return UserError(
        f"{source}: no {looked_for} below {raw}",
        remedy="unpack the official download there (`fedsm data prepare --list` draws the layout)",
    )


def check_complete(source: str, parts: dict[str, dict[str, Path]]) -> list[str]:
    """The cases in natural order, if each has all parts.

    Args:
        parts: name of a part -> case -> its file.

    Raises:
        UserError: a case with a part missing, naming the file that it does have.
    """
    cases = sorted(set().union(*parts.values()), key=natural_key)
    for case in cases:
        have = [found[case] for found in parts.values() if case in found]
        for what, found in parts.items():
            if case not in found:
                raise UserError(
                    f"{source}: {have[0]} has no {what}", remedy="unpack the rest of the download or remove the file"
                )
    return cases
