"""What a super model's selector says of the images of a new site: whom they resemble, and how foreign they are.

With x_1 .. x_n the new site's descriptors, mu their mean, and m_k the Mahalanobis distance to the mean of site k
(`fedsm.tracks.selector_statistics`):

    m_k(mu)                                   how far the site as a whole is from site k
    #{i : m_k(x_i) = min_j m_j(x_i)} / n      the share of its images that are nearest to site k
    u(x_i)                                    distance to the nearest site, in units of what is usual there

A mean of few images is farther from every site than one of many: its noise adds about D / n to the square of m_k(mu).
Nothing is trained, and no truth is needed. A trained selector has no distances: of it only its choices are told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fedsm.selectors.gaussian import StatisticsSelector
from fedsm.selectors.inference import GLOBAL, THRESHOLD
from fedsm.super_model.model import SuperModel
from fedsm.super_model.volumes import select_volume


@dataclass(frozen=True)
class Resemblance:
    """The n images (slices) of a new site, as a selector with K sites sees them.

    Attributes:
        images: n.
        nearest: model's site (`global` for the global model) -> images for which it is the selector's first choice;
            None without a selector.
        used: model -> images that the super model gives to it.
        of_mean: (K,) distance of the site's mean to each site's; None of a selector that knows no distance. Infinite
            where the statistics of a site are not known.
        between: (K, K) the same between the known sites.
        mean: (D,) mean descriptor.
        distances: (n,) of each image to the nearest site, 1 is usual there; None where the super model does not say
            what is usual (version 0.1).
        foreign: images that are farther than the policy's delta; None where it has none.
    """

    images: int
    nearest: dict[str, int] | None
    used: dict[str, int]
    of_mean: torch.Tensor | None = None
    between: torch.Tensor | None = None
    mean: torch.Tensor | None = None
    distances: torch.Tensor | None = None
    foreign: int | None = None


@torch.no_grad()
def resemblance(model: SuperModel, files: Iterable[torch.Tensor]) -> Resemblance:
    """Looks at the images of a new site.

    Args:
        model: the super model.
        files: (slices, C, S, S) each, as `SuperModel.read` gives them.
    """
    if model.rule is None:
        images = sum(map(len, files))
        return Resemblance(images, None, {GLOBAL: images} if GLOBAL in model.available else {})
    rows: list[torch.Tensor] = []
    said = []
    for file in files:
        said.append(select_volume(model, file, model.settings.batch_size))
        if isinstance(model.selector, StatisticsSelector):
            rows += map(model.selector.describe, file.split(model.settings.batch_size))
    choices = torch.cat([s.choices for s in said])
    used = {name: int((choices == i).sum()) for i, name in enumerate(model.models) if (choices == i).any()}
    nearest = _first_choices(model, torch.cat([s.yhat for s in said if s.yhat is not None]))
    if not rows:
        return Resemblance(len(choices), nearest, used)
    selector, mean = model.selector, torch.cat(rows).mean(0)
    of_mean = selector.distances_of(mean[None])[0].masked_fill(selector.unknown, torch.inf)
    between = selector.distances_of(selector.means)
    between[selector.unknown] = between[:, selector.unknown] = torch.inf
    distances = [s.distance for s in said if s.distance is not None and "typical" in model.files.networks["selector"]]
    flags = [s.foreign for s in said if s.foreign is not None]
    return Resemblance(
        len(choices), nearest, used, of_mean.clamp(min=0).sqrt(), between.clamp(min=0).sqrt(), mean,
        torch.cat(distances) if distances else None, int(torch.cat(flags).sum()) if flags else None,
    )  # fmt: skip


def _first_choices(model: SuperModel, yhat: torch.Tensor) -> dict[str, int]:
    names = model.sites if model.rule == THRESHOLD else [GLOBAL, *model.sites]
    counts = torch.bincount(yhat.argmax(1), minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=True))


def recommended(model: SuperModel, found: Resemblance) -> str | None:
    """The model that the site should use: `super_model`, or `global` where most images would go there anyway.

    A site of which most images are foreign, or leave the selector unsure, has no personal model among those that are
    there. None where there is neither a selector nor a global model.
    """
    if model.rule is None:
        return GLOBAL if GLOBAL in model.available else None
    return GLOBAL if 2 * found.used.get(GLOBAL, 0) > found.images else "super_model"
