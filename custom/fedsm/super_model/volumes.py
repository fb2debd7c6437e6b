"""One model for a whole volume, where a policy wants it: its slices are looked at before the first is segmented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fedsm.selectors.policy import Policy
from fedsm.selectors.selection import Selection, by_majority
from fedsm.super_model.prediction import BatchPrediction

if TYPE_CHECKING:
    from fedsm.super_model.model import SuperModel


def select_volume(model: SuperModel, pixels: torch.Tensor, batch_size: int, policy: Policy | None = None) -> Selection:
    """What is selected for the slices of one file (S, C, size, size); `policy`: another than the super model's own."""
    policy = policy or model.policy
    found = Selection.cat([model.select(part, policy) for part in pixels.split(batch_size)])
    return by_majority(found, model.rule, [len(pixels)]) if policy.majority else found


def predict_volumes(
    model: SuperModel, pixels: torch.Tensor, slices: Sequence[int], batch_size: int, **options: Any
) -> BatchPrediction:
    """Predicts files, in batches across files.

    Args:
        model: the super model.
        pixels: the slices of all files, one file after the other.
        slices: how many each file has; a picture is one.
        batch_size: slices that the networks see at once.
        **options: of `SuperModel.predict_batch`.
    """
    selection, policy = None, model.policy_for(**options)
    if policy.majority and max(slices) > 1:
        files = pixels.split(list(slices))
        selection = Selection.cat([select_volume(model, file, batch_size, policy) for file in files])
    batches = []
    for start in range(0, len(pixels), batch_size):
        rows = slice(start, start + batch_size)
        chosen = None if selection is None else selection.rows(rows)
        batches.append(model.predict_batch(pixels[rows], selection=chosen, **options))
    return BatchPrediction.cat(batches)
