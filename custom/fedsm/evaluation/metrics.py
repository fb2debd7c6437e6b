"""Dice, IoU and the 95 % Hausdorff distance of each image and label.

Scores of empty masks, with P the prediction and T the truth:

                    Dice   IoU   HD95
    P and T empty     1      1   0
    one of them       0      0   the image's diagonal, the largest possible distance

So a missed object is counted and no image is left out of a mean.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Sequence

import torch

from fedsm.core.dice import dice_per_image
from fedsm.core.errors import UserError

METRICS = (DICE, IOU, HD95) = ("dice", "iou", "hd95")
NSD = "nsd"
VOLUME_METRICS = (DICE, NSD, HD95)  # of whole volumes: `fedsm.evaluation.volume_scores`
TITLES = {DICE: "Dice", IOU: "IoU", HD95: "HD95", NSD: "NSD"}


def check_metrics() -> None:
    """Refuses to start where MONAI's Hausdorff distance cannot be computed.

    Raises:
        UserError: scipy is missing.
    """
    if importlib.util.find_spec("scipy") is None:
        message, remedy = "the Hausdorff distance needs scipy", "pip install 'fedsm[report]'"
        raise UserError(message, remedy=remedy, public=f"{message}: {remedy}")


def metrics_per_image(
    prediction: torch.Tensor, truth: torch.Tensor, spacing: tuple[float, float], metrics: Sequence[str] = METRICS
) -> dict[str, torch.Tensor]:
    """The metrics of a batch.

    Args:
        prediction: (B, L, H, W) boolean.
        truth: (B, L, H, W) boolean.
        spacing: from row to row and from column to column, in the unit of the distance.
        metrics: which; all but Dice take MONAI, and the distance most of the time.

    Returns:
        metric -> (B, L) float tensor on the CPU.
    """
    prediction, truth = prediction.cpu(), truth.cpu()
    measures: dict[str, Callable[[], torch.Tensor]] = {
        DICE: lambda: dice_per_image(prediction, truth),
        IOU: lambda: _iou(prediction, truth),
        HD95: lambda: _hd95(prediction, truth, spacing),
    }
    return {metric: measures[metric]() for metric in metrics}


def _iou(prediction: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    from monai.metrics import compute_iou

    return compute_iou(prediction.float(), truth.float(), ignore_empty=False)


def _hd95(prediction: torch.Tensor, truth: torch.Tensor, spacing: tuple[float, float]) -> torch.Tensor:
    from monai.metrics import compute_hausdorff_distance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about empty masks: their scores are defined above
        distance = compute_hausdorff_distance(
            prediction, truth, include_background=True, percentile=95, spacing=list(spacing)
        )
    filled, wanted = prediction.flatten(2).any(-1), truth.flatten(2).any(-1)
    height, width = truth.shape[-2:]
    diagonal = math.hypot((height - 1) * spacing[0], (width - 1) * spacing[1])
    distance = torch.where(filled & wanted, distance, torch.full_like(distance, diagonal))
    return torch.where(filled | wanted, distance, torch.zeros_like(distance))
