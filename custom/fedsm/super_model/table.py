"""`predictions.csv`: its columns, and how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np
from tqdm import tqdm

from fedsm.core.task_settings import TaskSettings
from fedsm.core.text import CsvTable
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


@dataclass
class Window:
    """Files that together filled a batch: their rows, and what is wrong with some of them."""

    files: int
    rows: list[list[dict[str, str]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class TableWriter:
    """The table while it grows, and the bar that a person sees.

    Attributes:
        images: images or slices in it.
        failed: what was reported.

    Args:
        file: the table.
        head: its columns.
        bar: a bar of files.
        report: called with one line for each problem.
    """

    def __init__(self, file: TextIO, head: list[str], bar: tqdm, report: Callable[[str], None]):
        self._file, self._rows, self._head, self._bar, self._report = file, CsvTable(file), head, bar, report
        self._rows.write(head)
        self.images = self.failed = 0

    def take(self, window: Window) -> None:
        """Adds what became of a batch."""
        for rows in window.rows:
            self._rows.write(*([row[name] for name in self._head] for row in rows))
            self.images += len(rows)
        for problem in window.problems:
            self._report(problem)
        self.failed += len(window.problems)
        self._file.flush()
        self._bar.update(window.files)
        self._bar.set_postfix_str(f"{self.images / max(self._bar.format_dict['elapsed'], 1e-9):.1f} images/s")
