"""Dice, surface Dice and the 95 % Hausdorff distance of whole volumes, in millimetres on the file's own grid.

The slices' probabilities are resized to the file's grid, as prediction does it, and put together. NSD, the normalized
surface Dice, is the share of both surfaces that is within a tolerance of the other one (Nikolov et al., 2021). The
surfaces are those of DeepMind's `surface-distance`, as MONAI has them.

Scores of empty masks, with P the prediction and T the truth, as of slices (`fedsm.evaluation.metrics`):

                    Dice   NSD   HD95
    P and T empty     1      1   0
    one of them       0      0   the volume's diagonal

Were the distance left out where one of them is empty, missing an organ would be better than finding it badly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from fedsm.data.cases import Volume
from fedsm.evaluation.metrics import DICE, HD95, NSD
from fedsm.super_model.prediction import labels_at


@dataclass
class VolumeScores:
    """The V volumes of a site, in the order of the files.

    Attributes:
        tolerance: of NSD, in millimetres.
        patients: the patient of each volume.
        scores: model name -> metric -> (V, L).
    """

    tolerance: float
    patients: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.patients)

    def add(self, patient: str, volume: Volume, masks: VolumeMasks) -> None:
        """Scores every model's mask of a volume."""
        self.patients.append(patient)
        for name in masks.names:
            found = volume_metrics(masks.of(name), volume.truth, volume.spacing, self.tolerance)
            rows = self.scores.setdefault(name, {})
            for metric, values in found.items():
                rows[metric] = torch.cat([rows[metric], values]) if metric in rows else values


class VolumeMasks:
    """The masks that models give of a volume, slice by slice; eight voxels in a byte, because there are many models."""

    def __init__(self, shape: tuple[int, ...]):
        self._size = (shape[-2], shape[-1])
        self._slices: dict[str, list[np.ndarray]] = {}

    def add(self, name: str, probabilities: torch.Tensor) -> None:
        """The next slices (B, L, S, S) of a model."""
        masks = (labels_at(one, self._size) for one in probabilities.cpu())
        self._slices.setdefault(name, []).extend(np.packbits(mask, axis=-1) for mask in masks)

    @property
    def names(self) -> Iterable[str]:
        """The models."""
        return self._slices

    def of(self, name: str) -> np.ndarray:
        """(S, L, H, W) bool of a model."""
        return np.unpackbits(np.stack(self._slices[name]), axis=-1, count=self._size[1]).astype(bool)


def volume_metrics(
    prediction: np.ndarray, truth: np.ndarray, spacing: tuple[float, float, float], tolerance: float
) -> dict[str, torch.Tensor]:
    """The metrics of a volume.

    Args:
        prediction: (S, L, H, W) bool. A single slice is scored as the flat image that it is.
        truth: the same.
        spacing: millimetres from slice to slice, row to row, column to column.
        tolerance: of NSD, in millimetres.

    Returns:
        metric -> (1, L) float tensor.
    """
    found, wanted = (torch.from_numpy(np.moveaxis(mask, 1, 0))[None] for mask in (prediction, truth))
    steps: tuple[float, ...] = spacing
    if found.shape[2] == 1:
        found, wanted, steps = found[:, :, 0], wanted[:, :, 0], spacing[1:]
    axes = tuple(range(2, found.ndim))
    diagonal = math.hypot(*((n - 1) * step for n, step in zip(found.shape[2:], steps, strict=True)))
    in_found, in_wanted, in_both = (mask.sum(axes) for mask in (found, wanted, found & wanted))
    either, both = (in_found + in_wanted) > 0, (in_found > 0) & (in_wanted > 0)
    dice = torch.where(either, 2 * in_both / (in_found + in_wanted).clamp(min=1), 1.0)
    nsd, distance = _surfaces(found, wanted, steps, tolerance)
    return {
        DICE: dice,
        NSD: torch.where(both, nsd, torch.where(either, 0.0, 1.0)),
        HD95: torch.where(both, distance, torch.where(either, diagonal, 0.0)),
    }


def _surfaces(
    found: torch.Tensor, wanted: torch.Tensor, spacing: tuple[float, ...], tolerance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """NSD and HD95 of each label, (1, L) each; 0 where one of the masks is empty."""
    from monai.metrics.utils import get_mask_edges

    nsd, distance = torch.zeros(1, found.shape[1]), torch.zeros(1, found.shape[1])
    for label, pair in enumerate(zip(found[0], wanted[0], strict=True)):
        if not all(mask.any() for mask in pair):
            continue
        elements = [np.asarray(part) for part in get_mask_edges(*pair, spacing=spacing)]  # two surfaces, their areas
        near = [apart <= tolerance for apart in _apart(elements[0], elements[1], spacing)]
        areas = [area[surface] for surface, area in zip(elements[:2], elements[2:], strict=True)]
        right = sum(float(area[within].sum()) for area, within in zip(areas, near, strict=True))
        nsd[0, label] = right / sum(float(area.sum()) for area in areas)
        edges = [np.asarray(part) for part in get_mask_edges(*pair)]
        distance[0, label] = max(float(np.percentile(apart, 95)) for apart in _apart(edges[0], edges[1], spacing))
    return nsd, distance


def _apart(one: np.ndarray, other: np.ndarray, spacing: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """How far each element of a surface is from the other surface, both ways.

    From a distance transform of the whole grid, whose time depends on the size of the grid alone. MONAI searches a tree
    of the other surface's elements: where these are all about as far away, as from noise inside a ball, it visits
    nearly all of them for each element, which takes minutes.
    """
    from scipy.ndimage import distance_transform_edt

    to_other, to_one = (distance_transform_edt(~surface, sampling=spacing) for surface in (other, one))
    return to_other[one].astype(np.float32), to_one[other].astype(np.float32)
