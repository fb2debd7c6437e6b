"""Prediction on files: masks, overlays and a table.

OUT/
  masks/...         in the same sub-folders, size and format as the images (JPEG: PNG; DICOM: DICOM-SEG)
  overlays/...png   outlines in colour
  captures/...dcm   the same as DICOM secondary captures
  predictions.csv   one row per image; a volume has one row per slice, from the feet to the head
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import fedsm
from fedsm.core.errors import UserError
from fedsm.core.private_files import new_file
from fedsm.data.labels import decompose
from fedsm.data.sources import Opened, Origin, Source
from fedsm.super_model.model import SuperModel
from fedsm.super_model.overlay import LONGEST, TILE, draw_overlay, preview
from fedsm.super_model.prediction import BatchPrediction, Prediction, join
from fedsm.super_model.read_ahead import read_ahead
from fedsm.super_model.table import Row, TableWriter, Window, columns, row_cells
from fedsm.super_model.volumes import predict_volumes

TABLE = "predictions.csv"


@dataclass
class Scan:
    """An image that was read, as the networks see it and as it is shown."""

    source: Source
    opened: Opened
    pixels: torch.Tensor
    size: tuple[int, int]
    shown: np.ndarray | None
    seconds: float

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.opened.array.nbytes + self.pixels.nbytes + (0 if self.shown is None else self.shown.nbytes)


@dataclass(frozen=True)
class Output:
    """Where results go and what is drawn.

    Attributes:
        folder: OUT.
        paths: image -> its mask and overlay below `masks/` and `overlays/`; see `inputs.output_paths`.
        names: image -> its name in the table.
        overlays: whether overlays are drawn.
        captures: whether they are written as DICOM secondary captures.
    """

    folder: Path
    paths: dict[Source, tuple[Path, Path]]
    names: dict[Source, str]
    overlays: bool = True
    captures: bool = False


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
    with (
        new_file(output.folder / TABLE).open("w", newline="", encoding="utf-8") as file,
        tqdm(total=len(output.paths), desc="predicting", unit="file", disable=None) as bar,  # None: not in a log
    ):
        table = TableWriter(file, columns(model.settings.task), bar, report)
        _predict_windows(model, output, batch_size, options, table)
    return table.images, table.failed


def _predict_windows(model: SuperModel, output: Output, batch_size: int, options: dict, table: TableWriter) -> None:
    """Predicts all files: while a thread writes the masks of a batch, the networks compute the next one."""
    writing: Future[Window] | None = None
    with ThreadPoolExecutor(1, "fedsm-writer") as pool:
        try:
            for found in _windows(_read_all(model, output, batch_size), batch_size):
                scans = [scan for scan in found if isinstance(scan, Scan)]
                window = Window(len(found), problems=[str(scan) for scan in found if not isinstance(scan, Scan)])
                slices = sum(len(scan.pixels) for scan in scans)
                predicted = list(_predict(model, scans, batch_size, options)) if scans else []
                done, writing = writing, pool.submit(_write, model, output, window, predicted)
                del found, scans, predicted
                if done:
                    table.take(done.result())
                if slices > 2 * batch_size:  # large volumes are not in memory twice
                    done, writing = writing, None
                    table.take(done.result())
        finally:
            if writing:
                table.take(writing.result())


def _write(
    model: SuperModel, output: Output, window: Window, predicted: list[tuple[Scan, BatchPrediction, float]]
) -> Window:
    for scan, batch, seconds in predicted:
        try:
            window.rows.append(_finish(model, output, scan, batch, seconds))
        except UserError as e:
            window.problems.append(str(e))
        except OSError as e:
            window.problems.append(f"the results of {scan.source.path} cannot be written: {e.strerror or e}")
        window.problems += map(str, scan.opened.problems)
    return window


def _read_all(model: SuperModel, output: Output, batch_size: int) -> Iterator[Scan | UserError]:
    """The files in their order, or what is wrong with them; only a few are in memory at a time."""

    def read(source: Source) -> Scan | UserError:
        started = time.perf_counter()
        try:
            opened = source.read(model.settings.task)
            longest = TILE if opened.numbered else min(LONGEST, max(opened.array.shape[1:3]))
            shown = preview(opened.array, longest) if output.overlays or output.captures else None
            pixels = model.pixels(opened.array, str(source.path))
        except UserError as e:
            return e
        except MemoryError:
            return UserError(f"{source.path} does not fit into memory", remedy="cut it into parts")
        return Scan(source, opened, pixels, opened.array.shape[1:3], shown, time.perf_counter() - started)

    return read_ahead(list(output.paths), read, lambda scan: getattr(scan, "nbytes", 0), batch_size)


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
    batch = predict_volumes(model, pixels, [len(scan.pixels) for scan in scans], batch_size, **options)
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
    task, opened = model.settings.task, scan.opened
    predictions: list[Prediction] = model.finish(batch, scan.size)
    mask = np.stack([p.mask for p in predictions])
    to_mask, to_overlay = output.paths[scan.source]
    used = join(predictions).model
    origin = Origin(task, fedsm.__version__, str(model.manifest.get("run_id") or "unknown"), used)
    opened.write_mask(output.folder / "masks" / to_mask, mask, origin)
    labels = decompose(mask, task)
    if scan.shown is not None:
        picture = draw_overlay(scan.shown, labels)
        if output.overlays:
            picture.save(new_file(output.folder / "overlays" / to_overlay))
        if output.captures:
            opened.write_capture(output.folder / "captures" / to_overlay.with_suffix(".dcm"), picture, origin)
    spent = (seconds + time.perf_counter() - started) / len(predictions)
    name = output.names[scan.source]
    rows = zip(predictions, opened.slice_names(), strict=True)
    return [
        row_cells(Row(name, i + 1 if opened.numbered else None, uids, p, labels[:, i], opened.area, spent), task)
        for i, (p, uids) in enumerate(rows)
    ]
