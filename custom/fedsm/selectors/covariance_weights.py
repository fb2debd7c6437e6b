"""How much each site weighs in the pooled covariance, so that no site dominates it.

Possible sums can still be hostile: a site whose descriptors scatter as widely as they can makes every image look near
to every site. So each site's own covariance C_k = S_k / (n_k - 1) is compared with those of all sites:

    A_k = U^-1 C_k U^-1                                 U: the usual spread of each number
    t_k = tr(A_k) / D                                   its mean width
    e_k = lambda_max(A_k)                               its largest width
    w_k = share_k / n_k, or 0 where t_k > FAR median(t) or e_k > FAR median(e)

share_k is the bounded share of its images (`shares`). U is public for the descriptor `image` (`image_scale`). For
activations of a network it comes from the sites: U_i^2 = median_k C_k,ii, plus the mean of that over i, because a
number that hardly varies at most sites says little.

With all w_k = 1 the classes are to the bit those of all images pooled. Honest sites pass: of the synthetic sites, the
nuclei and the breast data none is above 2.2 times the median (nuclei: grey microscopes beside a colour one). A site
that is left out keeps its class: only the covariance is computed without it. A site whose numbers are far larger than
the others' is also left out: differences of such sums are rounding errors. With fewer than three sites there is no
majority, and only the shares count.
"""

from __future__ import annotations

from statistics import median

import torch

from fedsm.core.shares import bounded_shares
from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import scatter_of, unpack

FAR = 4.0  # times the median: of a variance, so twice the usual deviation
_HUGE = 1e4  # times the median site's mean square
_TINY = 1e-12


def covariance_weights(
    sums: dict[str, Tensors], max_share: float, scale: torch.Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Site -> the weight of each of its images in the pooled covariance; and site -> why it is left out.

    Args:
        sums: site -> its sums.
        max_share: the job's setting.
        scale: the public spread of the descriptor's first numbers; empty where nothing is public.
    """
    counts = {site: own["n"].item() for site, own in sums.items()}
    shares = bounded_shares(counts, max_share)
    weights = {site: shares[site] / count if shares[site] < count else 1.0 for site, count in counts.items()}
    reasons: dict[str, str] = {}
    for site in _huge(sums):
        weights[site] = 0.0
        reasons[site] = "its descriptors are far larger than the other sites': left out of the selector's covariance"
    compared = [site for site in sums if weights[site] and counts[site] > 1]
    if len(compared) < 3:
        return weights, reasons
    covariances = {site: scatter_of(sums[site]) / (counts[site] - 1) for site in compared}
    unit = _unit(torch.stack([c.diagonal() for c in covariances.values()]), scale)
    widths = {site: _widths(c / torch.outer(unit, unit)) for site, c in covariances.items()}
    usual = [max(median(w[i] for w in widths.values()), _TINY) for i in range(2)]
    for site, own in widths.items():
        times = max(w / u for w, u in zip(own, usual, strict=True))
        if times > FAR:
            weights[site] = 0.0
            reasons[site] = (
                f"its images vary {times:.3g} times as much as the median site's (variance of their descriptors):"
                " left out of the selector's covariance; look at its images"
            )
    return weights, reasons


def _huge(sums: dict[str, Tensors]) -> list[str]:
    """Sites for which some number's mean square is far above the median site's; none with fewer than three sites."""
    if len(sums) < 3:
        return []
    squares = {s: unpack(own["outer"], len(own["sum"])).diagonal() / own["n"] for s, own in sums.items()}
    usual = torch.stack(list(squares.values())).median(0).values.clamp(min=1)
    return [site for site, own in squares.items() if (own > _HUGE * usual).any()]


def _unit(variances: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(K, D) variances to the usual spread of each number (D,)."""
    own = variances[:, len(scale) :].clamp(min=0).median(0).values
    return torch.cat([scale, (own + own.mean()).clamp(min=_TINY).sqrt()]) if len(own) else scale


def _widths(covariance: torch.Tensor) -> tuple[float, float]:
    """t_k and e_k."""
    return covariance.diagonal().mean().item(), torch.linalg.eigvalsh(covariance).abs().max().item()
