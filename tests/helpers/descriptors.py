"""Descriptors without images."""

import torch

from fedsm.selectors.descriptor import image_scale


def rows_of(n: int, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    """Descriptors as the public constants expect them: one unit of spread, half of it common to all numbers."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.randn(n, 63, generator=generator) * 0.5 + torch.randn(n, 1, generator=generator) * 0.5 + shift
    centre, scale = image_scale(3)
    return unit.double() * scale + centre
