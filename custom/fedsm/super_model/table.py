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
    for name, label in zip(task.labels, row.labels, strict=True):
        pixels = int(label.sum())
        cells[f"{name}_pixels"] = str(pixels)
        cells[f"{name}_mm2"] = "" if row.area is None else f"{pixels * row.area:.2f}"
    if _RATIO in columns(task):
        by_name = dict(zip(task.labels, row.labels, strict=True))
        ratio = cup_to_disc(by_name["disc"], by_name["cup"])
        cells[_RATIO] = "" if ratio is None else f"{ratio:.3f}"
    return cells


def cup_to_disc(disc: np.ndarray, cup: np.ndarray) -> float | None:
    """Vertical cup-to-disc ratio of (H, W) bool masks; None without a disc.

    The height of a label is that of its tallest column: a stray pixel elsewhere does not count.
    """
    height = int(disc.sum(axis=0).max(initial=0))
    return int(cup.sum(axis=0).max(initial=0)) / height if height else None
