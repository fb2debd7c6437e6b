"""Which files the user means, and where their masks go."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import numpy as np

from fedsm.core.errors import UserError
from fedsm.core.natural_order import natural_key
from fedsm.data.readers import FORMATS, is_supported, stem
from fedsm.data.writers import mask_name


def list_inputs(given: list[str]) -> dict[Path, Path]:
    """The files that files, folders and patterns stand for.

    A folder stands for every image below it, without hidden files and without the `masks/` of a site's folder. A file
    given by its name is taken whatever its ending.

    Returns:
        file -> its path below the folder that all inputs share.

    Raises:
        UserError: nothing there, or no images in it.
    """
    files: dict[Path, None] = {}
    bases: list[str] = []
    for text in given:
        path = Path(text)
        if path.is_dir():
            found = _walk(path)
            if not found:
                raise UserError(f"no images in {path}", remedy=f"it must hold {FORMATS} files")
            bases.append(os.path.abspath(path))
        elif path.exists() or path.is_symlink():
            found = [path]
            bases.append(os.path.abspath(path.parent))
        else:
            matches = [Path(p) for p in sorted(glob.glob(text, recursive=True), key=natural_key)]
            found = [p for p in matches if not p.is_dir() and is_supported(p)]
            if not found:
                raise UserError(f"{text} does not exist" if not glob.has_magic(text) else f"no image matches {text}")
            bases += [os.path.abspath(p.parent) for p in found]
        files |= dict.fromkeys(Path(os.path.abspath(p)) for p in found)
    base = os.path.commonpath(bases)
    return {file: file.relative_to(base) for file in files}


def _walk(folder: Path) -> list[Path]:
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        if {"images", "masks"} <= set(folders):  # a site's folder
            folders.remove("masks")
        paths = (Path(root, name) for name in sorted(names, key=natural_key) if not name.startswith("."))
        found += [path for path in paths if is_supported(path)]
    return found


def output_paths(inputs: dict[Path, Path], dtype: np.dtype) -> dict[Path, tuple[Path, Path]]:
    """Where mask and overlay of each file go, below the output's `masks/` and `overlays/`.

    Raises:
        UserError: the masks or overlays of two files would have the same name.
    """
    paths: dict[Path, tuple[Path, Path]] = {}
    taken: dict[Path, Path] = {}
    for file, below in inputs.items():
        mask, overlay = below.with_name(mask_name(below, dtype)), below.with_name(stem(below) + ".png")
        if overlay in taken:  # overlays are named by the stem, so this also finds masks of the same name
            raise UserError(f"{file} and {taken[overlay]} have the same name", remedy="predict them to two folders")
        taken[overlay] = file
        paths[file] = (mask, overlay)
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
