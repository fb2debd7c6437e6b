"""The sites of the table of rules against attacks: six for each data set, small pictures, written once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.robust_attacks import Attack
from fedsm.data.synthetic import write_sites


@dataclass(frozen=True)
class Data:
    """A data set.

    Attributes:
        task: the task's name.
        hostile: the sites that attack; one attacker is the last of them.
        lr: the learning rate.
    """

    task: str
    hostile: tuple[str, str]
    lr: float


# Nuclei have four sites of 48 pictures. Two of them are split, picture by picture (each is a patient of its own).
DATA = {
    "synthetic": Data("retinal", ("site-5", "site-6"), 3e-3),
    "nuclei": Data("nuclei", ("fluor-360", "fluor-696"), 1e-2),
}
_SPLIT = ("fluor-256", "histology")
_IMAGES = 24  # of the median synthetic site


def write_data(name: str, root: Path, nuclei: Path, size: int) -> None:
    """Writes the six sites of a data set, unless they are there."""
    if root.is_dir():
        return
    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    if name == "synthetic":
        write_sites(partial, 6, 0, _IMAGES, 2 * size)
    else:
        _write_nuclei(partial, nuclei, 2 * size)
    partial.rename(root)


def _write_nuclei(root: Path, source: Path, size: int) -> None:
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        for number, image in enumerate(sorted((folder / "images").iterdir())):
            site = f"{folder.name}-{'ab'[number % 2]}" if folder.name in _SPLIT else folder.name
            mask = next((folder / "masks").glob(f"{image.stem}.*"))
            for part, path, how in (("images", image, Image.Resampling.BOX), ("masks", mask, Image.Resampling.NEAREST)):
                target = root / site / part / f"{image.stem}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(path) as opened:
                    opened.convert("RGB" if part == "images" else "L").resize((size, size), how).save(target)


def poisoned(root: Path, attack: Attack, hostile: tuple[str, ...], out: Path) -> Path:
    """The data root of an attack: a copy with the hostile sites' files changed, or the root itself."""
    if attack.poison is None:
        return root
    if not out.is_dir():
        partial = out.with_name(out.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(root, partial)
        for site in hostile:
            for number, path in enumerate(sorted((partial / site / "images").iterdir())):
                mask = partial / site / "masks" / path.name
                changed = attack.poison(np.asarray(Image.open(path)), np.asarray(Image.open(mask)), number)
                for file, pixels in zip((path, mask), changed, strict=True):
                    Image.fromarray(pixels).save(file)
        partial.rename(out)
    return out
