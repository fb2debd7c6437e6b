"""Which files the user means, and where their masks go."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.natural_order import natural_key
from fedsm.data.dicom.header import looks_like_dicom
from fedsm.data.readers import FORMATS, is_supported, stem
from fedsm.data.sources import FileSource, Source


@dataclass(frozen=True)
class Inputs:
    """What is to be predicted.

    Attributes:
        sources: image -> its path below the folder that all inputs share.
        problems: DICOM files and series that cannot be used.
    """

    sources: dict[Source, Path]
    problems: list[UserError]


def list_inputs(given: list[str]) -> Inputs:
    """The images that files, folders and patterns stand for.

    A folder stands for every image below it, without hidden files and without the `masks/` of a site's folder. A file
    given by its name is taken whatever its ending. DICOM files become one image per series.

    Raises:
        UserError: nothing there, or no images in it.
    """
    files: dict[Path, None] = {}
    bases: list[str] = []
    named: set[Path] = set()
    for text in given:
        path = Path(text)
        if path.is_dir():
            found = _walk(path)
            if not found:
                raise UserError(f"no images in {path}", remedy=f"it must hold {FORMATS} files, or DICOM")
            bases.append(os.path.abspath(path))
        elif path.exists() or path.is_symlink():
            found = [path]
            bases.append(os.path.abspath(path.parent))
            named.add(Path(os.path.abspath(path)))
        else:
            matches = [Path(p) for p in sorted(glob.glob(text, recursive=True), key=natural_key)]
            found = [p for p in matches if not p.is_dir() and _is_image(p)]
            if not found:
                raise UserError(f"{text} does not exist" if not glob.has_magic(text) else f"no image matches {text}")
            bases += [os.path.abspath(p.parent) for p in found]
        files |= dict.fromkeys(Path(os.path.abspath(p)) for p in found)
    return _sources(list(files), named, Path(os.path.commonpath(bases)))


def _sources(files: list[Path], named: set[Path], base: Path) -> Inputs:
    dicom = [file for file in files if not is_supported(file) and looks_like_dicom(file)]
    if not dicom:
        return Inputs({FileSource(file): file.relative_to(base) for file in files}, [])
    from fedsm.data.dicom.source import list_sources

    rest = set(files) - set(dicom)
    sources: dict[Source, Path] = {FileSource(file): file.relative_to(base) for file in files if file in rest}
    images, problems = list_sources(dicom, named, base)
    if not sources and not images and not problems:
        raise UserError(f"no images in {base}", remedy="its DICOM files hold none")
    return Inputs(sources | images, problems)


def _walk(folder: Path) -> list[Path]:
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        if {"images", "masks"} <= set(folders):  # a site's folder
            folders.remove("masks")
        paths = (Path(root, name) for name in sorted(names, key=natural_key) if not name.startswith("."))
        found += [path for path in paths if _is_image(path)]
    return found


def _is_image(path: Path) -> bool:
    return is_supported(path) or looks_like_dicom(path)


def output_paths(inputs: dict[Source, Path], dtype: np.dtype) -> dict[Source, tuple[Path, Path]]:
    """Where mask and overlay of each image go, below the output's `masks/` and `overlays/`.

    Raises:
        UserError: the masks or overlays of two files would have the same name.
    """
    paths: dict[Source, tuple[Path, Path]] = {}
    taken: dict[Path, Path] = {}
    for source, below in inputs.items():
        mask, overlay = below.with_name(source.mask_name(below, dtype)), below.with_name(stem(below) + ".png")
        if overlay in taken:  # overlays are named by the stem, so this also finds masks of the same name
            raise UserError(
                f"{source.path} and {taken[overlay]} have the same name", remedy="predict them to two folders"
            )
        taken[overlay] = source.path
        paths[source] = (mask, overlay)
    return paths


def check_output(out: Path, given: list[str], force: bool) -> None:
    """Refuses an output folder that is not empty or lies among the inputs.

    Raises:
        UserError: with the remedy.
    """
    for text in given:
        if Path(text).is_dir() and Path(text).resolve() in (out.resolve(), *out.resolve().parents):
            raise UserError(
                f"{out} lies among the images of {text}: masks would be taken for images next time",
                remedy="choose another folder",
            )
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", remedy="choose a folder")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise UserError(f"{out} is not empty", remedy="choose another folder or --force")
