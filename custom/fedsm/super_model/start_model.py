"""A personal model for a site that has trained nothing yet: the mean of the others', weighted by similarity.

    w_new = sum_j p_j w_{p,j}

with the shares p of `fedsm.selectors.similarity`: those that would pull the new site's model if it took part.
"""

from __future__ import annotations

import torch

from fedsm.core.state import RunningMean
from fedsm.core.tensors import Tensors
from fedsm.selectors.gaussian import StatisticsSelector
from fedsm.selectors.inference import personal
from fedsm.selectors.similarity import pull_shares, similarities, squared_distances
from fedsm.super_model.artefact import SuperModelFiles


def start_shares(files: SuperModelFiles, selector: StatisticsSelector, mean: torch.Tensor) -> dict[str, float]:
    """Site -> its share in the new site's model.

    Args:
        files: the super model.
        selector: its selector.
        mean: (D,) mean descriptor of the new site's images.
    """
    classes = files.networks["selector"]
    squared = squared_distances(classes | {"means": torch.cat([selector.means, mean[None]])})
    known = ~torch.cat([selector.unknown, torch.tensor([False])])
    squared = squared.where(known[:, None] & known, torch.nan)
    shares = pull_shares(similarities(squared), files.settings.max_share)[-1, :-1]
    return dict(zip(files.manifest["sites"], shares.tolist(), strict=True))


def start_model(files: SuperModelFiles, shares: dict[str, float]) -> Tensors:
    """The weighted mean of the personal models; integer buffers are those of the site with the largest share."""
    models = {site: files.networks[personal(site)] for site in shares}
    first = next(iter(models.values()))
    mean = RunningMean(first)
    for index, (site, tensors) in enumerate(models.items()):
        mean.add(tensors, shares[site], index)
    return mean.added_to({key: torch.zeros_like(value) for key, value in first.items()})
