"""Which model segments an image: Algorithm 2, and soft selection beside it."""

from __future__ import annotations

import torch

GLOBAL = "global"
# A selector class sets in its `rule` how its probabilities are used at inference:
THRESHOLD = "threshold"  # (B, K): Algorithm 2 with a threshold gamma
DIRECT = "direct"  # (B, K + 1): the most probable model, 0 is the global one; no threshold (FedSM-extra)
MIXTURE = "mixture"  # (B, K + 1): the mixture sum_m yhat_m h_m of all models, 0 is the global one (ensemble)


def personal(site: str) -> str:
    """The model name of a site's personal network."""
    return f"personal.{site}"


def select(probabilities: torch.Tensor, gamma: float) -> torch.Tensor:
    """Chooses a model for each image.

    If max(yhat) > gamma the personal model argmax(yhat), otherwise the global one. gamma = 0 never takes the global
    model, gamma = 1 always does.

    Args:
        probabilities: (B, K) yhat of the selector.
        gamma: the threshold.

    Returns:
        (B,) indices: 0 is the global model, k + 1 the personal model of site k.
    """
    confidence, site = probabilities.max(dim=1)
    return torch.where(confidence > gamma, site + 1, 0)


def blend(probabilities: torch.Tensor, gamma: float) -> torch.Tensor:
    """Soft selection: the two most probable personal models share an image, in proportion to yhat.

    Where Algorithm 2 would take the global model, it gets the whole weight.

    Args:
        probabilities: (B, K) yhat of the selector.
        gamma: the threshold.

    Returns:
        (B, K + 1) weights of the models that sum to 1; column 0 is the global model.
    """
    top, sites = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
    weights = torch.zeros(len(probabilities), probabilities.shape[1] + 1)
    weights.scatter_(1, sites + 1, top / top.sum(dim=1, keepdim=True))
    unsure = top[:, 0] <= gamma
    weights[unsure] = 0
    weights[unsure, 0] = 1
    return weights


def mix(weights: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """The mixture of the models' probabilities.

    Args:
        weights: (B, M) weights of the models.
        probabilities: (M, B, L, H, W) what they say.

    Returns:
        (B, L, H, W) probabilities.
    """
    if weights.device != probabilities.device:
        weights = weights.to(probabilities.device)
    return torch.einsum("bm,mblhw->blhw", weights, probabilities)
