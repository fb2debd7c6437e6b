"""From a selector's probabilities to a model for each image, or to the weights of several models."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional

from fedsm.selectors.inference import MIXTURE, THRESHOLD, blend, select


class Selection(NamedTuple):
    """The selector's result for a batch; `yhat` and `distance` are None where it has none.

    Attributes:
        choices: (B,) the model of each image: 0 is the global one, k + 1 the personal one of site k. For a mixture
            its heaviest part.
        yhat: (B, K) probabilities of the sites; (B, K + 1) for FedSM-extra and ensemble, the global model first.
        distance: (B,) Mahalanobis distance to the nearest site's images: how unusual an image is (`statistics`).
    """

    choices: torch.Tensor
    yhat: torch.Tensor | None
    distance: torch.Tensor | None


def choose(yhat: torch.Tensor, rule: str, gamma: float | None) -> torch.Tensor:
    """(B, K) or (B, K + 1) probabilities to (B,) indices of models, 0 is the global one; see `fedsm.tracks.base`."""
    if rule != THRESHOLD:
        return yhat.argmax(1)
    assert gamma is not None, "a threshold rule has a threshold"
    return select(yhat, gamma)


def weights_of(selection: Selection, models: int, rule: str | None, gamma: float | None, soft: bool) -> torch.Tensor:
    """(B, models) weights that sum to 1: one model per image, or those of a mixture or of soft selection."""
    if rule == MIXTURE:
        assert selection.yhat is not None
        return selection.yhat
    if soft and rule == THRESHOLD:
        assert selection.yhat is not None and gamma is not None
        return blend(selection.yhat, gamma)
    return functional.one_hot(selection.choices, models).float()
