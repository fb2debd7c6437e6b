"""How alike the sites are, from the sums that the statistics selector holds anyway, and what that gives each in a pull.

With mu_k, D and R of `selector_statistics`, R shrunk by `SHRINKAGE`:

    d_kj^2 = z^T R^-1 z,  z = D^-1 (mu_k - mu_j)         squared Mahalanobis distance between two sites
    h^2    = median of d_kj^2 over all pairs             what is usual between two sites of this federation
    s_kj   = f + (1 - f) exp(-d_kj^2 / (2 h^2))          similarity; f = FLOOR
    p_kj   = s_kj / sum_{i != k} s_ki                    share of site j in the mean that pulls site k

Nothing here has to be tuned. h makes s independent of the number of features and of how far apart the sites are as a
whole: sites at equal distances have equal shares, which is plain SoftPull. Squared distances, because a site of few
images is further from all others by about D / n_k, the noise of its mean: in its own row that is a common factor of the
exponential, which the sum takes out.

Two limits. f keeps every site in: the least similar one weighs at least a tenth of an identical one. And no share is
above `most` times the uniform one, 1 / (K - 1); what is above goes to the others by their similarity. So a site that
sends the sums of another, to be taken for its twin, gets at most `most` times what it has without similarity; sums that
are not possible at all are refused before (`possible_sums`), and the median keeps one of five or more sites from
setting h. With fewer than four sites there is little to share: of two others, one can have up to 1 / (1 + f).
"""

from __future__ import annotations

import torch

from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import whitening

FLOOR = 0.1
SHRINKAGE = 0.1  # fixed: the selector's own is chosen after the last round
_TINY = 1e-12


def squared_distances(classes: Tensors) -> torch.Tensor:
    """(K, K) squared Mahalanobis distances between the class means of `gaussian_classes`."""
    rows = (classes["means"] / classes["deviation"]) @ whitening(classes["correlation"], SHRINKAGE).T
    squares: torch.Tensor = (rows[:, None] - rows).square().sum(-1)
    return squares


def similarities(squared: torch.Tensor) -> torch.Tensor:
    """(K, K) squared distances to similarities in [FLOOR, 1]; the diagonal means nothing.

    A distance that is not known (NaN: a site without sums) counts as the median one.
    """
    count = len(squared)
    usual = squared[*torch.triu_indices(count, count, offset=1)].nanmedian().clamp(min=_TINY)
    ratio = (squared / usual).nan_to_num(nan=1.0)
    return FLOOR + (1 - FLOOR) * (-ratio / 2).exp()


def pull_shares(similarity: torch.Tensor, most: float) -> torch.Tensor:
    """(K, K) similarities to the shares p_kj: rows add up to 1, the diagonal is 0.

    Args:
        similarity: of the sites that take part, at least two.
        most: how many times the uniform share one site may have, at least 1.
    """
    others = similarity.clone().fill_diagonal_(0.0)
    limit = max(most, 1.0) / (len(others) - 1)
    return torch.stack([_limited(row, limit) for row in others])


def _limited(row: torch.Tensor, limit: float) -> torch.Tensor:
    """The row as shares of 1, none above the limit."""
    full = torch.zeros_like(row, dtype=torch.bool)
    while True:
        free = row.masked_fill(full, 0.0)
        left = max(1.0 - limit * int(full.sum()), 0.0)
        shares = torch.where(full, limit, free * left / free.sum().clamp(min=_TINY))
        above = (shares > limit) & ~full
        if not above.any():
            return shares
        full |= above
