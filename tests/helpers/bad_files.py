"""Files that hospitals really have: broken ones, and odd ones that are harmless."""

from __future__ import annotations

import os
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from tests.helpers.small_jobs import write_site

SITES = ["alpha", "beta"]


COUNT = 12


def write_root(root: Path) -> Path:
    for seed, site in enumerate(SITES):
        write_site(root / site, COUNT, seed)
    return root


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:300])
    return path.name


def put(path: Path, pixels: np.ndarray, **options) -> str:
    Image.fromarray(pixels).save(path, **options)
    return path.name


def volume(folder: Path, image: np.ndarray) -> str:
    """Puts a volume and its mask in the place of case_01."""
    for part, array in (("images", image), ("masks", np.ones(image.shape[:3], np.uint8))):
        (folder / part / "case_01.png").unlink()
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / part / "case_01.nii.gz")
    return "case_01.nii.gz"


def loop(path: Path) -> str:
    path.unlink()
    path.symlink_to(path)
    return path.name


def empty(path: Path) -> str:
    path.write_bytes(b"")
    return path.name


def no_volume(folder: Path) -> str:
    volume(folder, np.zeros((40, 40, 2), np.float32))
    return empty(folder / "images" / "case_01.nii.gz")


def pipe(path: Path) -> str:
    path.unlink()
    os.mkfifo(path)
    return path.name


def film(folder: Path) -> str:
    path = folder / "images" / "case_01.png"
    frames = [Image.fromarray(np.full((40, 40), i, np.uint8)) for i in (0, 200)]
    frames[0].save(path, "TIFF", save_all=True, append_images=frames[1:])
    return path.name


NOISE = np.random.default_rng(0).integers(1, 256, (40, 40, 3)).astype(np.float32)


# what is done to a site's case_01 (returns the file that must be named) and the words that must be said
BAD = {
    "truncated image": (lambda f: cut(f / "images/case_01.png"), "cannot be read"),
    "truncated mask": (lambda f: put(f / "masks/case_01.png", NOISE[..., 0].astype(np.uint8)) and
                       cut(f / "masks/case_01.png"), "cannot be read"),
    "NIfTI with NaN": (lambda f: volume(f, np.where(NOISE > 250, np.nan, NOISE)), "NaN"),
    "4D NIfTI": (lambda f: volume(f, np.stack([NOISE] * 2, -1)), "channels"),
    "mask of another size": (lambda f: put(f / "masks/case_01.png", np.ones((20, 40), np.uint8)), "differ in size"),
    "symlink loop": (lambda f: loop(f / "images/case_01.png"), "leads to itself"),
    "image of 0 bytes": (lambda f: empty(f / "images/case_01.png"), "0 bytes"),
    "mask of 0 bytes": (lambda f: empty(f / "masks/case_01.png"), "0 bytes"),
    "volume of 0 bytes": (no_volume, "0 bytes"),
    "pipe": (lambda f: pipe(f / "images/case_01.png"), "not a regular file"),
    "several pictures": (film, "2 pictures in one file"),
    "12-bit floats": (lambda f: put(f / "images/case_01.png", NOISE[..., 0] * 16, format="TIFF"), "intensities"),
}  # fmt: skip


def rename(folder: Path, names: list[str]) -> None:
    for i, name in enumerate(names):
        for part in ("images", "masks"):
            (folder / part / f"case_{i:02d}.png").rename(folder / part / f"{name}.png")


ODD_NAMES = ["with space", "größe äöü", "眼底", "глаз 2", "two\nlines", "no text \udcff", "-dash", "a.b.c", "100%"]


# what is done to a site, and the words of its WARN, if it earns one
HARMLESS = {
    "all-zero mask": (lambda f: put(f / "masks/case_01.png", np.zeros((40, 40), np.uint8)), "empty mask"),
    "JPEG named .png": (
        lambda f: put(f / "images/case_01.png", NOISE.astype(np.uint8), format="JPEG"), "name and format differ",
    ),
    "odd names": (lambda f: rename(f, ODD_NAMES), None),
}  # fmt: skip
