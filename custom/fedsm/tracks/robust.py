"""Arithmetic that combines K updates of which f may be anything. No tracks, no sites: stacked tensors and distances.

    trimmed mean      each entry: the weighted mean of its values without the f lowest and the f highest
    median            each entry: its middle value, of an even number the mean of the two in the middle
    multi-Krum        score_k = sum of the squared distances to the K - f - 2 nearest others; the weighted mean of the
                      K - f updates with the lowest scores
    geometric median  the point with the smallest sum of distances to all updates (Weiszfeld's iteration)

Yin et al., "Byzantine-robust distributed learning", ICML 2018 (the first two); Blanchard et al., "Machine learning with
adversaries", NeurIPS 2017; Pillutla et al., "Robust aggregation for federated learning", 2022 (RFA).

The first two look at one entry at a time and are computed piece by piece. The last two need only the K x K distances:
whatever they make is sum_k c_k u_k with sum_k c_k = 1, so the iteration never touches the updates again.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch

from fedsm.core.tensors import Tensors

_PIECE = 128 * 1024  # entries of one update at a time
_STEPS = 1000
_SAME = 1e-12  # between shares of two steps
_NEAR = 1e-6  # of the largest distance: a point at which the median lies would get an infinite share


def trimmed_mean(values: torch.Tensor, weights: torch.Tensor, trim: int) -> torch.Tensor:
    """(n,) sum_k a_k v_k / sum_k a_k of each column, over the values that are left.

    Args:
        values: (K, n).
        weights: (K,) a; they go with their values, and do not decide which are left.
        trim: so many of the lowest and of the highest values of each column are left out; 2 trim < K.
    """
    if not trim:
        return (weights @ values) / weights.sum()
    ordered, rows = values.sort(dim=0, stable=True)
    kept = slice(trim, len(values) - trim)
    shares = weights[rows[kept]]
    return (shares * ordered[kept]).sum(0) / shares.sum(0)


def trimmed_means_of_others(values: torch.Tensor, trim: int) -> torch.Tensor:
    """(K, n) for each row the trimmed mean of the other rows, all of one weight.

    One sort serves all K: with s the sorted column, the others' trimmed sum is
    s_trim + ... + s_{K-1-trim} - clamp(v_k, s_trim, s_{K-1-trim}), of K - 1 - 2 trim values.

    Args:
        values: (K, n).
        trim: of the lowest and of the highest values among the others; 2 trim < K - 1.
    """
    kept = values.sort(dim=0).values[trim : len(values) - trim]
    return (kept.sum(0) - values.clamp(kept[0], kept[-1])) / (len(kept) - 1)


def squared_distances(updates: list[Tensors], held: Set[str] = frozenset()) -> torch.Tensor:
    """(K, K) squared distances between updates over all float entries, in float64.

    From products of what is left without the mean, so that near updates do not lose their digits.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for _, _, values in pieces(updates, held):
        centred = values.double()
        centred -= centred.mean(0)
        products += centred @ centred.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0)


def multi_krum(distances: torch.Tensor, weights: torch.Tensor, outliers: int) -> torch.Tensor:
    """(K,) shares that add up to 1: a_k of the K - f chosen updates, 0 of the others; of equals the first are chosen.

    Args:
        distances: (K, K) squared.
        weights: (K,) a.
        outliers: f; K >= 2 f + 3.
    """
    count = len(distances)
    nearest = distances.sort(dim=1).values[:, 1 : count - outliers - 1]  # without the distance to itself
    chosen = nearest.sum(1).argsort(stable=True)[: count - outliers]
    shares = torch.zeros_like(weights)
    shares[chosen] = weights[chosen]
    return shares / shares.sum()


def geometric_median(distances: torch.Tensor) -> torch.Tensor:
    """(K,) shares that add up to 1; every update counts the same.

    c_k <- (1 / d_k) / sum_j (1 / d_j),      d_k^2 = ||u_k - sum_j c_j u_j||^2 = (D c)_k - c' D c / 2

    Args:
        distances: (K, K) squared, D.
    """
    shares = torch.full((len(distances),), 1 / len(distances), dtype=distances.dtype)
    least = _NEAR**2 * distances.max()
    if least == 0:
        return shares
    for _ in range(_STEPS):
        before = shares
        to_all = distances @ shares
        nearness = (to_all - shares @ to_all / 2).clamp(min=least).rsqrt()
        shares = nearness / nearness.sum()
        if (shares - before).abs().max() < _SAME:
            break
    return shares


def pieces(updates: list[Tensors], held: Set[str] = frozenset()) -> Iterator[tuple[str, slice, torch.Tensor]]:
    """The float entries of the updates, stacked: key, place in the flat tensor, (K, n); the memory of one piece."""
    for key, value in updates[0].items():
        if key in held or not value.is_floating_point():
            continue
        flat = [update[key].reshape(-1) for update in updates]
        for start in range(0, value.numel(), _PIECE):
            place = slice(start, start + _PIECE)
            yield key, place, torch.stack([values[place] for values in flat])
