"""The Dice coefficient, as the paper's tables use it."""

import torch


def dice_per_image(prediction: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Dice of each image and label: 2 |P and T| / (|P| + |T|).

    An empty truth with an empty prediction counts 1.

    Args:
        prediction: (B, L, H, W) boolean.
        truth: (B, L, H, W) boolean.

    Returns:
        (B, L) float tensor on the CPU.
    """
    both = (prediction & truth).flatten(2).sum(-1)
    total = prediction.flatten(2).sum(-1) + truth.flatten(2).sum(-1)
    return torch.where(total > 0, 2 * both / total.clamp(min=1), 1.0).cpu()
