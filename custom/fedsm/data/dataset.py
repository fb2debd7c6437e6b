"""What training sees of a site: tensors of one size, in batches whose order a seed fixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from fedsm.data.intensity import IntensityError, scale_intensity
from fedsm.data.patients import patients_of
from fedsm.data.site_folder import Pair, list_pairs, read_pair
from fedsm.data.split import PARTS, derive_seed, split_site
from fedsm.errors import UserError
from fedsm.settings import JobSettings, TaskSettings
from fedsm.tracks.base import Batch


@dataclass
class Part:
    """Images (N, C, S, S) float32 in 0..1 and labels (N, L, S, S) uint8 of one part of a site."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.images)

    def batches(
        self, batch_size: int, device: torch.device, pin: bool = False, seed: int | None = None
    ) -> Iterator[Batch]:
        """Walks all images once, the last batch may be smaller.

        Args:
            batch_size: images a batch.
            device: where the batches go.
            pin: through pinned memory (CUDA).
            seed: fixes a random order; None keeps the files' order.
        """
        if seed is None:
            order = torch.arange(len(self))
        else:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        for rows in order.split(batch_size):
            images, labels = self.images[rows], self.labels[rows].float()
            if pin and device.type == "cuda":
                images, labels = images.pin_memory(), labels.pin_memory()
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def to_tensors(image: np.ndarray, mask: np.ndarray, task: TaskSettings, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One pair to (slices, C, size, size) float32 in 0..1 and (slices, L, size, size) uint8."""
    pixels = torch.from_numpy(np.ascontiguousarray(scale_intensity(image, task.intensity))).permute(0, 3, 1, 2)
    pixels = functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True).clamp(0, 1)
    values = torch.from_numpy(np.ascontiguousarray(mask).astype(np.int32))[:, None].float()
    values = functional.interpolate(values, (size, size), mode="nearest-exact")[:, 0]
    labels = [torch.isin(values, torch.tensor(v, dtype=values.dtype)) for v in task.labels.values()]
    return pixels, torch.stack(labels, dim=1).to(torch.uint8)


def seeded_order(settings: JobSettings, site: str, round_number: int, epoch: int) -> int:
    """The seed of a site's order of batches in one epoch: the same whatever process runs it."""
    return derive_seed(settings.seed, site, round_number, epoch)


def load_site(
    folder: Path, site: str, settings: JobSettings, state: Path | None = None, patient_pattern: str | None = None
) -> dict[str, Part]:
    """Loads a site's folder to its three parts.

    Args:
        folder: the site's folder.
        site: its name.
        settings: the job's settings.
        state: where the split is written down; None draws it anew.
        patient_pattern: the patient in a file's name; see `patients_of`.

    Raises:
        UserError: whatever is wrong with the folder, naming the site, the file and the remedy.
    """
    pairs = list_pairs(folder, site)
    stems = [p.stem for p in pairs]
    patients = patients_of(folder, stems, patient_pattern or settings.task.patient_pattern or None, site)
    split = split_site(stems, patients, settings.seed, site, folder, state)
    parts = {}
    for part in PARTS:
        tensors = [_load_pair(pairs[i], site, settings) for i in split[part]]
        parts[part] = Part(torch.cat([t[0] for t in tensors]), torch.cat([t[1] for t in tensors]))
    return parts


def _load_pair(pair: Pair, site: str, settings: JobSettings) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        return to_tensors(*read_pair(pair, site, settings.task), settings.task, settings.size)
    except IntensityError as e:
        raise UserError(f"site {site!r}: {pair.image}: {e}") from e
