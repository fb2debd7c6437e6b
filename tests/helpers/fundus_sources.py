"""Folders in the layout of each public download of fundus images, with circles drawn by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 160


DISC, CUP = 50, 24


LINE = 3


def circle(radius: float, centre=(80, 80), shape=(SIZE, SIZE)) -> np.ndarray:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    return np.hypot(rows - centre[1], columns - centre[0]) <= radius


def fundus(seed: int = 0, shape=(SIZE, SIZE)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    base = np.array([150, 70, 30]) + 40 * circle(DISC, shape=shape)[..., None]
    return (base + rng.normal(0, 4, (*shape, 3))).clip(0, 255).astype(np.uint8)


def save(array: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **({"quality": 92} if path.suffix == ".jpg" else {}))


def drishti(raw: Path) -> None:
    for part, truth, number in (("Training", "GT", 2), ("Training", "GT", 8), ("Test", "Test_GT", 1)):
        name = f"drishtiGS_{number:03d}"
        save(fundus(number), raw / "Drishti-GS1_files" / part / "Images" / f"{name}.png")
        maps = raw / "Drishti-GS1_files" / part / truth / name / "SoftMap"
        # Four readers, each with a larger circle: up to +4 three of them agree, up to +6 it is a tie.
        for ending, radius in (("ODsegSoftmap", DISC), ("cupsegSoftmap", CUP)):
            votes = sum(circle(radius + more).astype(int) for more in (0, 4, 6, 8))
            save(np.round(votes * 255 / 4).astype(np.uint8), maps / f"{name}_{ending}.png")


def rim_one(raw: Path) -> None:
    shape = (128, 192)  # two views side by side
    for folder, case in (("Healthy", "N-10-R"), ("Healthy", "N-11-L"), ("Glaucoma and suspects", "G-1-L")):
        save(fundus(1, shape), raw / "RIM-ONE r3" / folder / "Stereo Images" / f"{case}.jpg")
        for what, radius in (("Disc", 40), ("Cup", 18)):
            for place, name, more in (("Average", "Avg", 0), ("Expert1", "exp1", 5), ("Expert2", "exp2", -5)):
                view = "" if name == "Avg" else "-1"
                path = raw / "RIM-ONE r3" / folder / f"{place}_masks" / f"{case}{view}-{what}-{name}.png"
                save((circle(radius + more, (48, 64), shape) * 255).astype(np.uint8), path)


def refuge(raw: Path) -> None:
    grey = np.where(circle(CUP), 0, np.where(circle(DISC), 128, 255)).astype(np.uint8)
    for picture, mask in (
        ("Training400/Glaucoma/g0001", "Annotation-Training400/Disc_Cup_Masks/Glaucoma/g0001"),
        ("Training400/Non-Glaucoma/n0001", "Annotation-Training400/Disc_Cup_Masks/Non-Glaucoma/n0001"),
        ("REFUGE-Validation400/V0001", "REFUGE-Validation400-GT/Disc_Cup_Masks/V0001"),
        ("Test400/T0001", "REFUGE-Test-GT/Disc_Cup_Masks/G/T0001"),
    ):
        save(fundus(), raw / f"{picture}.jpg")
        save(grey, raw / f"{mask}.bmp")
    save(fundus(), raw / "Annotation-Training400/Disc_Cup_Fovea_Illustration/Glaucoma/g0001.jpg")
    save(fundus(), raw / "Training400/Non-AMD/N0001.jpg")
