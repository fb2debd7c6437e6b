"""The loss around a trained model, along random directions: how sharp is the minimum that training found?

    L(a; d) = mean Dice loss of f(w + a d) over some images,  |d| = 1

with d drawn from a normal distribution and divided by its norm over all weights (the paper's unit vectors; not
normalised by filter). Networks of one size share the same directions, so that their curves can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedsm.core.task_settings import TaskSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.nets.monai_parts import DiceLoss

DIRECTIONS = 10


def unit_directions(weights: Tensors, seed: int, count: int = DIRECTIONS) -> list[Tensors]:
    """Random directions in the space of all weights, each of norm 1."""
    generator = torch.Generator().manual_seed(seed)
    directions = []
    for _ in range(count):
        drawn = {k: torch.randn(v.shape, generator=generator, dtype=torch.float64) for k, v in weights.items()}
        norm = sum((d.square().sum() for d in drawn.values()), torch.zeros(())).sqrt()
        directions.append({k: (d / norm).to(weights[k].dtype) for k, d in drawn.items()})
    return directions


def norm_of(weights: Tensors) -> float:
    """The Euclidean norm over all weights."""
    return float(
        sum((v.double().square().sum() for v in weights.values()), torch.zeros((), dtype=torch.float64)).sqrt()
    )


@torch.no_grad()
def loss_surface(
    task: TaskSettings,
    weights: Tensors,
    batches: Sequence[Batch],
    steps: list[float],
    directions: list[Tensors],
    done: Callable[[], object],
) -> list[torch.Tensor]:
    """The loss at every step along every direction.

    Args:
        task: the task of the U-Net.
        weights: the trained weights.
        batches: images and labels; each has a surface of its own.
        steps: distances from the trained weights.
        directions: see `unit_directions`.
        done: called after each loss.

    Returns:
        for each batch (directions, steps).
    """
    net, loss = build_unet(task).eval(), DiceLoss(sigmoid=True)
    surfaces = [torch.zeros(len(directions), len(steps)) for _ in batches]
    for row, direction in enumerate(directions):
        for column, step in enumerate(steps):
            net.load_state_dict({k: v + step * direction[k] for k, v in weights.items()})
            for surface, (images, labels) in zip(surfaces, batches, strict=True):
                surface[row, column] = loss(net(images), labels.float())
                done()
    return surfaces
