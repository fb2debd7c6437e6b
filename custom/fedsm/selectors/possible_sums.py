"""Whether a site's sums can be sums of n real descriptors at all. They come from outside, so they are checked.

With d in [a, b] for every image, mean mu = s / n and scatter S = Q - s s^T / n:

    a <= mu <= b                                        every number's public range (`image_range`)
    S_ii / n <= (b - a)^2 / 4                           Popoviciu: the limit is half of the images at each end
    S is positive semidefinite                          so |s_i| <= sqrt(n Q_ii), and correlations are in [-1, 1]

up to rounding: S is the difference of two large sums, in float64, or in float32 where a filter made it so. Only the
descriptor `image` has a public range; activations of a network have no useful one. Their sums are compared with those
of the other sites: see `covariance_weights`.

Private sums (`private_sums`) are brought into the same bounds before they leave the site.
"""

from __future__ import annotations

import math

import torch

from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import pack, scatter_of, unpack

_SLACK = 1e-3  # of a number's range: GPUs and CPUs round differently
_ROUNDING = 1e-6  # of Q, for each number's square root: the rounding error of float32
Range = tuple[torch.Tensor, torch.Tensor]


def sums_problem(sums: Tensors, bounds: Range | None) -> str | None:
    """What is impossible about a site's sums, or None.

    Args:
        sums: `n`, `sum` and `outer`; all finite.
        bounds: the lowest and the highest value of the descriptor's first numbers; None: there are none.
    """
    sums = {k: v.double() for k, v in sums.items()}
    n, size = sums["n"].item(), len(sums["sum"])
    if n < 1 or n != int(n):
        return f"statistics of {n:g} images, expected a whole number of at least 1"
    squares = unpack(sums["outer"], size).diagonal()
    if squares.min() < 0:
        return "impossible statistics: a sum of squares is negative"
    if bounds is not None and (reason := _range_problem(sums, bounds)):
        return reason
    # S in units of Q's diagonal: its eigenvalues are in [0, D].
    unit = squares.sqrt().clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
    relative = scatter_of(sums) / torch.outer(unit, unit)
    if not torch.isfinite(relative).all():
        return "impossible statistics: they are too large to compute with"
    least = torch.linalg.eigvalsh(relative).min().item()
    if least < -_ROUNDING * math.sqrt(size):
        return "impossible statistics: the sums of products are no sums over real images (not positive semidefinite)"
    return None


def _range_problem(sums: Tensors, bounds: Range) -> str | None:
    low, high = bounds
    held = len(low)
    width, mean = high - low, (sums["sum"] / sums["n"])[:held]
    outside = ((mean < low - _SLACK * width) | (mean > high + _SLACK * width)).nonzero().flatten()
    if len(outside):
        i = int(outside[0])
        return f"impossible statistics: mean {mean[i]:.3g} of number {i}, possible are {low[i]:.3g} to {high[i]:.3g}"
    variance = scatter_of(sums).diagonal()[:held] / sums["n"]
    most = width.square() / 4 * (1 + _SLACK)
    outside = (variance > most).nonzero().flatten()
    if len(outside):
        i = int(outside[0])
        return f"impossible statistics: variance {variance[i]:.3g} of number {i}, possible is at most {most[i]:.3g}"
    return None


def made_possible(sums: Tensors, bounds: Range) -> Tensors:
    """Sums with noise in them, brought into the bounds of `sums_problem`; those that are in them stay as they are."""
    low, high = bounds
    n = sums["n"]
    mean = sums["sum"] / n
    covariance = scatter_of(sums) / n
    inside = mean.clamp(min=low, max=high)
    most = (high - low).square() / 4
    variance = covariance.diagonal()
    shrink = torch.where(variance > most, (most / variance.clamp(min=1e-300)).sqrt(), 1.0)
    if (inside - mean).abs().max() < 1e-9 and shrink.min() > 1 - 1e-9:  # within the bounds already
        return sums
    covariance = covariance * torch.outer(shrink, shrink)
    return {"n": n, "sum": n * inside, "outer": pack(n * (covariance + torch.outer(inside, inside)))}
