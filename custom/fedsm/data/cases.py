"""A site's files one by one, as training saw them, with what a score needs to know: patient and spacing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import Part, pair_tensors
from fedsm.data.dicom.place import ImportPlace
from fedsm.data.dicom.site import images_folder, is_one_site
from fedsm.data.patients import patients_of
from fedsm.data.readers import slice_count, stem, voxel_spacing
from fedsm.data.site_folder import Pair, list_pairs, read_pair, site_folders
from fedsm.data.site_rules import RESEARCH, SiteRules
from fedsm.data.split import PARTS, split_site

ALL = "all"


@dataclass(frozen=True)
class Volume:
    """A volume's truth on the file's own grid.

    Attributes:
        truth: (S, L, H, W) bool.
        spacing: millimetres from slice to slice, row to row, column to column.
    """

    truth: np.ndarray
    spacing: tuple[float, float, float]


@dataclass
class Case:
    """One file: images (S, C, size, size) in 0..1 and labels (S, L, size, size) of its S slices.

    Attributes:
        stem: the file's name without its ending.
        patient: the patient it belongs to.
        part: train, validation or test; `all` if the site is not split.
        images: its slices, resized as in training.
        labels: their labels, uint8.
        spacing: from row to row and from column to column of the resized slice: millimetres for a volume, pixels of
            the file for a picture.
        unit: `mm` or `px`.
        volume: the truth in the file's own size; None for a picture, or where it is not known.
    """

    stem: str
    patient: str
    part: str
    images: torch.Tensor
    labels: torch.Tensor
    spacing: tuple[float, float]
    unit: str
    volume: Volume | None = None


class SiteCases:
    """The files of one part of a site; can be iterated any number of times.

    Args:
        folder: the site's folder.
        site: its name.
        settings: the job's settings.
        part: train, validation, test, or `all` without a split.
        state: the site's state folder with the split of training, which is only read; None: the split is drawn again.
        rules: what the site decides about its files, whatever the job says.
        pairs: only these files; None: all, each of which must have a mask.
        imports: where the copy of DICOM files is kept; see `images_folder`.

    Raises:
        UserError: whatever is wrong with the folder.
    """

    def __init__(
        self, folder: Path, site: str, settings: JobSettings, part: str, state: Path | None = None,
        rules: SiteRules = RESEARCH, pairs: list[Pair] | None = None, imports: ImportPlace | None = None,
    ):  # fmt: skip
        self.site, self.part, self._settings = site, part, settings
        folder = images_folder(folder, site, settings.task, imports)
        pairs = list_pairs(folder, site) if pairs is None else pairs
        stems = [p.stem for p in pairs]
        patients = patients_of(folder, stems, rules.pattern(folder, settings.task, site), site)
        rows: Sequence[int] = range(len(pairs))
        if part != ALL:
            assert part in PARTS
            rows = split_site(stems, patients, rules.split_seed(settings), site, folder, state, write=False)[part]
        self._files: list[tuple[Pair, str]] = [(pairs[i], patients[i]) for i in rows]

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Case]:
        for pair, patient in self._files:
            task, size = self._settings.task, self._settings.size
            image, mask = read_pair(pair, self.site, task)
            images, labels = pair_tensors(image, mask, pair, self.site, self._settings)
            height, width = mask.shape[1:]
            voxel, volume = voxel_spacing(pair.image), None
            if voxel:
                truth = np.stack([np.isin(mask, values) for values in task.labels.values()], axis=1)
                volume = Volume(truth, voxel)
            _, row, column = voxel or (1.0, 1.0, 1.0)
            spacing = (row * height / size, column * width / size)
            yield Case(pair.stem, patient, self.part, images, labels, spacing, "mm" if voxel else "px", volume)


def part_cases(part: Part, name: str) -> Iterator[Case]:
    """The files of a part that was loaded for training; distances are then in pixels of the network's size."""
    start = 0
    for file, patient in part.files:
        rows = slice(start, start + slice_count(file))
        yield Case(stem(file), patient, name, part.images[rows], part.labels[rows], (1.0, 1.0), "px")
        start = rows.stop


def data_folders(root: Path) -> dict[str, Path]:
    """Site name -> folder: the sub-folders of a data root, or the folder itself if it is one site's.

    Raises:
        UserError: neither.
    """
    if is_one_site(root):
        return {root.resolve().name: root}
    names = site_folders(root)
    if not names:
        raise UserError(
            f"{root} holds no site", remedy="it must have one folder per site, each with images/ and masks/"
        )
    return {name: root / name for name in names}
