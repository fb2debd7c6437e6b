"""The columns of `predictions.csv`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsm.core.task_settings import TaskSettings
from fedsm.data.sources import SliceName
from fedsm.super_model.prediction import Prediction

_RATIO = "vertical_cup_to_disc"
_UIDS = ("series_uid", "instance_uid")  # of DICOM images


@dataclass(frozen=True)
class Row:
    """An image or slice: its file, its number in a volume, its name in DICOM, its prediction, its labels (L, H, W), the
    area of a pixel in square millimetres (None: unknown) and the time in seconds."""

    file: str
    slice: int | None
    uids: SliceName
    prediction: Prediction
    labels: np.ndarray
    area: float | None
    seconds: float


def columns(task: TaskSettings) -> list[str]:
    """The table's header."""
    areas = [f"{label}_{unit}" for label in task.labels for unit in ("pixels", "mm2")]
    ratio = [_RATIO] if {"disc", "cup"} <= set(task.labels) else []
    return ["file", "slice", *_UIDS, "model", "confidence", "distance", "foreign", "seconds", *areas, *ratio]


def row_cells(row: Row, task: TaskSettings) -> dict[str, str]:
    """A row as text; unknown values are empty."""
    p = row.prediction
    cells = {
        "file": row.file,
        "slice": "" if row.slice is None else str(row.slice),
        **dict(zip(_UIDS, row.uids, strict=True)),
        "model": p.model,
        "confidence": "" if p.confidence is None else f"{p.confidence:.4f}",
        "distance": "" if p.distance is None else f"{p.distance:.3f}",
        "foreign": "" if p.foreign is None else "foreign" if p.foreign else "no",
        "seconds": f"{row.seconds:.3f}",
    }
    digits = {"pixels": ".0f", "mm2": ".2f", "disc": ".3f"}  # by the end of a measure's name
    for name, value in measures(row.labels, row.area, task).items():
        cells[name] = "" if value is None else format(value, digits[name.rpartition("_")[2]])
    return cells


def measures(labels: np.ndarray, area: float | None, task: TaskSettings) -> dict[str, float | None]:
    """What is measured of labels (L, H, W); None: unknown. `area` is that of a pixel, see `Row`."""
    by_name = dict(zip(task.labels, labels, strict=True))
    found: dict[str, float | None] = {}
    for name, label in by_name.items():
        pixels = int(label.sum())
        found |= {f"{name}_pixels": pixels, f"{name}_mm2": None if area is None else pixels * area}
    if _RATIO in columns(task):
        found[_RATIO] = cup_to_disc(by_name["disc"], by_name["cup"])
    return found


def cup_to_disc(disc: np.ndarray, cup: np.ndarray) -> float | None:
    """Vertical cup-to-disc ratio of (H, W) bool masks; None without a disc.

    The height of a label is that of its tallest column: a stray pixel elsewhere does not count.
    """
    height = int(disc.sum(axis=0).max(initial=0))
    return int(cup.sum(axis=0).max(initial=0)) / height if height else None
