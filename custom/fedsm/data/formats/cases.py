"""The cases of a dataset: checked as a whole, then written as the sites of a data root, by links where that goes."""

from __future__ import annotations

import csv
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import yaml

from fedsm.core.errors import UserError
from fedsm.core.files import replacing_folder, write_json, write_text
from fedsm.core.names import below
from fedsm.core.task_settings import TaskSettings
from fedsm.data import patients, split
from fedsm.data.limits import load_volume
from fedsm.data.readers import VOLUMES, suffix
from fedsm.data.site_folder import Pair, read_pair

TASK_FILE = "task.yaml"


@dataclass(frozen=True)
class Case:
    """An image and its mask.

    Attributes:
        name: its name in the data root.
        images: its file, or one for each channel.
        mask: the labels.
        site: the site that it belongs to.
        patient: its patient; None: it is one of its own.
        part: train, validation or test; None: the split is drawn later.
    """

    name: str
    images: tuple[Path, ...]
    mask: Path
    site: str
    patient: str | None = None
    part: str | None = None


def by_site(cases: list[Case]) -> dict[str, list[Case]]:
    """Site -> its cases, in their order."""
    sites: dict[str, list[Case]] = {}
    for case in cases:
        sites.setdefault(case.site, []).append(case)
    return sites


def check_cases(cases: list[Case], task: TaskSettings, source: Path, done: Callable[[], object]) -> None:
    """Reads every file, and refuses whatever is wrong with it; nothing is written.

    Raises:
        UserError: a file that cannot be read, or that does not fit its mask, its other channels or the task; a name
            that occurs twice; a split that cannot be used.
    """
    twice = [name for name, count in Counter((case.site, case.name) for case in cases).items() if count > 1]
    if twice:
        raise UserError(f"site {twice[0][0]!r} has two cases {twice[0][1]!r}", file=source, remedy="rename one of them")
    for site, own in by_site(cases).items():
        if own[0].part:
            parts = {part: [case.name for case in own if case.part == part] for part in split.PARTS}
            names, of = [case.name for case in own], [case.patient or case.name for case in own]
            split.check_parts(parts, names, of, source, site)
    for case in cases:
        alone = task.replace(channels=task.channels // len(case.images))
        for image in case.images:
            read_pair(Pair(case.name, image, case.mask), case.site, alone)
        for first, other in itertools.pairwise(case.images):
            if not _same_grid(first, other):
                raise UserError(
                    f"is not on the grid of {first.name}", site=case.site, file=other, remedy="resample it to that grid"
                )
        done()


def write_root(cases: list[Case], task: TaskSettings, out: Path, done: Callable[[], object]) -> Counter[str]:
    """Writes a data root with the sites and the task; it appears when it is complete.

    Returns:
        how many files were `linked`, `copied` (where links cannot be) and `stacked` (channels to one file).
    """
    counts: Counter[str] = Counter()
    with replacing_folder(out) as root:
        write_text(root / TASK_FILE, yaml.safe_dump(task.model_dump(exclude_unset=True), sort_keys=False))
        for site, own in by_site(cases).items():
            for part in ("images", "masks"):
                (root / site / part).mkdir(parents=True)
            for case in own:
                counts[_write_image(case, root / site / "images")] += 1
                counts[link(case.mask, root / site / "masks" / f"{case.name}{suffix(case.mask)}")] += 1
                done()
            if own[0].patient is not None:
                write_table(
                    root / site / patients.FILE_NAME, ["file", "patient"], [[case.name, case.patient] for case in own]
                )
            if own[0].part is not None:
                parts = {part: [case.name for case in own if case.part == part] for part in split.PARTS}
                write_json(root / site / split.FILE_NAME, parts)
    return counts


def check_places(source: Path, out: Path) -> None:
    """Refuses an output folder that holds something or lies in what is read.

    Raises:
        UserError: with the remedy.
    """
    if not source.is_dir():
        raise UserError(f"{source} is not a folder")
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already", remedy="choose a new or empty folder: nothing is overwritten")
    if out.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{out} lies in {source}", remedy="choose a folder outside of it")


def inside(dataset: Path, path: Path) -> Path:
    """Returns a file of a dataset as it is named there.

    Raises:
        UserError: it, or what it links to, lies outside of the dataset.
    """
    below(dataset, path)
    return path


def link(source: Path, target: Path) -> str:
    """Makes `target` the same file as `source` by a hard link, which also works where only OUT can be seen (in a
    container); on another file system, or where links are forbidden, a copy. Returns `linked` or `copied`."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
        return "copied"
    return "linked"


def write_table(file: Path, head: list[str], rows: list[list[str | None]]) -> None:
    """Writes a CSV table that is read again: cells are as they are, also those that a spreadsheet would compute."""
    with file.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([head, *rows])


def _same_grid(one: Path, other: Path) -> bool:
    """Whether two files have the same voxels in the same order: they are put together as they are stored."""
    first, second = load_volume(one), load_volume(other)
    return first.shape == second.shape and np.allclose(first.affine, second.affine, atol=1e-3)


def _write_image(case: Case, folder: Path) -> str:
    if len(case.images) == 1:
        return link(case.images[0], folder / f"{case.name}{suffix(case.images[0])}")
    volumes = [load_volume(image) for image in case.images]
    channels = [np.asanyarray(volume.dataobj) for volume in volumes]
    shape = (*channels[0].shape, 1, 1)[:3]  # (x, y, z), whatever axes of length 1 the files have
    stacked = np.stack([channel.reshape(shape) for channel in channels], axis=-1)
    if stacked.dtype == np.float64:  # of scaled integers
        stacked = stacked.astype(np.float32)
    assert suffix(case.images[0]) in VOLUMES, "pictures have all channels in one file"
    nibabel.save(nibabel.Nifti1Image(stacked, volumes[0].affine), folder / f"{case.name}.nii.gz")
    return "stacked"
