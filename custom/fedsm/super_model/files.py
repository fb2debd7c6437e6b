"""Prediction on files: masks, overlays and a table.

OUT/
  masks/...         in the same sub-folders, size and format as the images (JPEG: PNG)
  overlays/...png   outlines in colour
  predictions.csv   one row per image; a volume has one row per slice, from the feet to the head
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from fedsm.core.errors import UserError
from fedsm.core.private_files import new_file
from fedsm.core.text import CsvTable
from fedsm.data.readers import VOLUMES, suffix
from fedsm.data.site_folder import read_image
from fedsm.data.writers import pixel_area, write_mask
from fedsm.super_model.labels import decompose
from fedsm.super_model.model import SuperModel
from fedsm.super_model.overlay import LONGEST, TILE, draw_overlay, preview
from fedsm.super_model.prediction import BatchPrediction, Prediction
from fedsm.super_model.table import Row, columns, row_cells

TABLE = "predictions.csv"
_READERS = 2  # threads that decode while the networks compute


@dataclass
class Scan:
    """A file that was read: its pixels as the networks see them, and what is needed to write its mask."""

    file: Path
    pixels: torch.Tensor
    size: tuple[int, int]
    shown: np.ndarray | None
    seconds: float


@dataclass(frozen=True)
class Output:
    """Where results go and what is drawn.

    Attributes:
        folder: OUT.
        paths: file -> its mask and overlay below `masks/` and `overlays/`; see `inputs.output_paths`.
        names: file -> its name in the table.
        overlays: whether overlays are drawn.
    """

    folder: Path
    paths: dict[Path, tuple[Path, Path]]
    names: dict[Path, str]
    overlays: bool = True


def predict_files(
    model: SuperModel, output: Output, batch_size: int, options: dict, report: Callable[[str], None]
) -> tuple[int, int]:
    """Predicts files, in batches across files.

    Args:
        model: the super model.
        output: the files and where their results go.
        batch_size: images per batch.
        options: options of `SuperModel.predict_batch`.
        report: called with one line for each file that could not be predicted; the other files are still predicted.

    Returns:
        images (slices) that were predicted, and files that were not.
    """
    images = failed = 0
    with new_file(output.folder / TABLE).open("w", newline="", encoding="utf-8") as table:
        writer, head = CsvTable(table), columns(model.settings.task)
        writer.write(head)
        bar = tqdm(total=len(output.paths), desc="predicting", unit="file", disable=None)  # None: not in a log
        with bar:
            for window in _windows(_read_all(model, output), batch_size):
                scans = [scan for scan in window if isinstance(scan, Scan)]
                problems = [str(scan) for scan in window if not isinstance(scan, Scan)]
                for scan, batch, seconds in _predict(model, scans, batch_size, options) if scans else ():
                    try:
                        rows = _finish(model, output, scan, batch, seconds)
                        writer.write(*([row[name] for name in head] for row in rows))
                        images += len(scan.pixels)
                    except OSError as e:
                        problems.append(f"the results of {scan.file} cannot be written: {e.strerror or e}")
                for problem in problems:
                    report(problem)
                failed += len(problems)
                table.flush()
                bar.update(len(window))
                bar.set_postfix_str(f"{images / max(bar.format_dict['elapsed'], 1e-9):.1f} images/s")
    return images, failed


def _read_all(model: SuperModel, output: Output) -> Iterator[Scan | UserError]:
    """The files in their order, or what is wrong with them; only a few are in memory at a time."""

    def read(file: Path) -> Scan | UserError:
        started = time.perf_counter()
        try:
            array = read_image(file, model.settings.task)
            longest = TILE if suffix(file) in VOLUMES else min(LONGEST, max(array.shape[1:3]))
            shown = preview(array, longest) if output.overlays else None
            pixels = model.pixels(array, str(file))
        except UserError as e:
            return e
        except MemoryError:
            return UserError(f"{file} does not fit into memory", remedy="cut it into parts")
        return Scan(file, pixels, array.shape[1:3], shown, time.perf_counter() - started)

    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        try:
            for file in output.paths:
                waiting.append(pool.submit(read, file))
                if len(waiting) > _READERS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _windows(scans: Iterator[Scan | UserError], batch_size: int) -> Iterator[list[Scan | UserError]]:
    """Files that together fill a batch."""
    window, count = [], 0
    for scan in scans:
        window.append(scan)
        count += len(scan.pixels) if isinstance(scan, Scan) else 0
        if count >= batch_size:
            yield window
            window, count = [], 0
    if window:
        yield window


def _predict(
    model: SuperModel, scans: list[Scan], batch_size: int, options: dict
) -> Iterator[tuple[Scan, BatchPrediction, float]]:
    """Each file with its predictions and its share of the time in seconds."""
    started = time.perf_counter()
    pixels = torch.cat([scan.pixels for scan in scans])
    batch = BatchPrediction.cat([model.predict_batch(part, **options) for part in pixels.split(batch_size)])
    seconds = (time.perf_counter() - started) / len(pixels)
    offset = 0
    for scan in scans:
        rows = slice(offset, offset + len(scan.pixels))
        yield scan, batch.rows(rows), scan.seconds + seconds * len(scan.pixels)
        offset = rows.stop


def _finish(
    model: SuperModel, output: Output, scan: Scan, batch: BatchPrediction, seconds: float
) -> list[dict[str, str]]:
    """Writes mask and overlay; returns the table's rows."""
    started = time.perf_counter()
    task = model.settings.task
    predictions: list[Prediction] = model.finish(batch, scan.size)
    mask = np.stack([p.mask for p in predictions])
    to_mask, to_overlay = output.paths[scan.file]
    write_mask(output.folder / "masks" / to_mask, mask, scan.file)
    labels = decompose(mask, task)
    if scan.shown is not None:
        draw_overlay(scan.shown, labels).save(new_file(output.folder / "overlays" / to_overlay))
    area, volume = pixel_area(scan.file), suffix(scan.file) in VOLUMES
    spent = (seconds + time.perf_counter() - started) / len(predictions)
    return [
        row_cells(Row(output.names[scan.file], i + 1 if volume else None, p, labels[:, i], area, spent), task)
        for i, p in enumerate(predictions)
    ]
