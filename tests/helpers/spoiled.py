"""Files that are as a hospital's may be, and worse."""

import os
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

from fedsm.data.findings import KINDS, format_reports
from tests.helpers.small_jobs import small_settings

TASK = small_settings().task
PROSTATE = small_settings(task="prostate").task
RNG = np.random.default_rng(0)


def write_volume(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.diag([0.5, 0.5, 3, 1]) if affine is None else affine), path)


def save(path: Path, array: np.ndarray, **options) -> None:
    Image.fromarray(array).save(path, **options)


def spoil(folder: Path, how: str) -> None:
    """Spoils case_01 of a site."""
    image, mask = folder / "images" / "case_01.png", folder / "masks" / "case_01.png"
    noise = RNG.integers(0, 255, (40, 40, 3), np.uint8)
    grey = RNG.integers(0, 255, (40, 40), np.uint8)
    {
        "no mask": lambda: mask.unlink(),
        "no image": lambda: image.unlink(),
        "two of a stem": lambda: Image.open(image).save(image.with_suffix(".bmp")),
        "truncated": lambda: image.write_bytes(image.read_bytes()[:300]),
        "0 bytes": lambda: mask.write_bytes(b""),
        "text": lambda: image.write_text("no picture"),
        "symlink loop": lambda: (image.unlink(), image.symlink_to(image)),
        "broken link": lambda: (image.unlink(), image.symlink_to(folder / "gone.png")),
        "folder": lambda: (image.unlink(), image.mkdir()),
        "pipe": lambda: (image.unlink(), os.mkfifo(image)),
        "other size": lambda: save(mask, np.zeros((10, 20), np.uint8)),
        "colour mask": lambda: save(mask, noise),
        "other value": lambda: save(mask, np.full((40, 40), 7, np.uint8)),
        "empty mask": lambda: save(mask, np.zeros((40, 40), np.uint8)),
        "constant": lambda: save(image, np.full((40, 40, 3), 90, np.uint8)),
        "black": lambda: save(image, (noise // 100).clip(0, 2)),
        "white": lambda: save(image, 255 - noise // 100),
        "8 bit in 16": lambda: save(image, grey.astype(np.uint16)),
        "jpeg": lambda: save(image, noise, format="JPEG"),
        "other files": lambda: (folder / "images" / "notes.txt").write_text("x"),
    }[how]()


def assert_found(report, kind: str, *names: str) -> None:
    """The one finding of a kind: its level, the site, the files that it names, one line, a remedy."""
    level, what, remedy = KINDS[kind]
    (finding,) = [f for f in report.findings if f.remedy == remedy and f.what.startswith(what.split("{}")[0])]
    assert (finding.level, finding.site) == (level, report.site)
    assert all(name in finding.file + finding.what for name in names), finding
    assert finding.remedy and "\n" not in finding.what + finding.file + finding.remedy
    assert report.level == min(f.level for f in report.findings)
    assert finding.what in format_reports([report])
