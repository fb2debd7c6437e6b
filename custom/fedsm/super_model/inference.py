"""Algorithm 2: which model segments an image."""

from __future__ import annotations

import torch

GLOBAL = "global"


def personal(site: str) -> str:
    """The model name of a site's personal network."""
    return f"personal.{site}"


def select(probabilities: torch.Tensor, gamma: float) -> torch.Tensor:
    """Chooses a model for each image.

    If max(yhat) > gamma the personal model argmax(yhat), else the global one. gamma = 0 never takes the global
    model, gamma = 1 always does.

    Args:
        probabilities: (B, K) yhat of the selector.
        gamma: the threshold.

    Returns:
        (B,) indices: 0 is the global model, k + 1 the personal model of site k.
    """
    confidence, site = probabilities.max(dim=1)
    return torch.where(confidence > gamma, site + 1, 0)
