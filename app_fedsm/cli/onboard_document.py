"""The `data` of `fedsm onboard`."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field

from fedsm.core.described import Described, Model, Name, Score, Site
from fedsm.evaluation.evaluation_file import Interval
from fedsm.super_model.model import SuperModel
from fedsm.super_model.resemblance import Resemblance


class Likeness(Described):
    """How much the new site resembles one that took part."""

    distance: Score = Field(description="Mahalanobis distance of the two sites' mean images; null where it is unknown.")
    nearest: float | None = Field(
        description="Share of the new site's images for which this site is the selector's first choice."
    )
    share: Score = Field(description="This site's share in the model that the new site may start from.")


class Range(Described):
    """Where values lie."""

    low: Score = Field(description="The lowest, or the 5 % quantile of images.")
    median: Score = Field(description="The median.")
    high: Score = Field(description="The highest, or the 95 % quantile of images.")


class Difference(Interval):
    """The difference from the recommended model, on the same images."""

    p: Score = Field(description="Wilcoxon's signed-rank test on the patients' mean differences, two-sided.")


class ModelDice(Interval):
    """The Dice of one model on the labelled images: mean over labels."""

    minus_chosen: Difference | None = Field(description="How much better it is than the recommended model.")


class Onboarding(Described):
    """A new site, seen through a super model."""

    site: str = Field(description="The name of its folder.")
    images: int = Field(description="Images, or slices of volumes.")
    labelled: int = Field(description="Files of them that have a mask.")
    patients: int | None = Field(description="Patients of the labelled images; null without any.")
    selector: str = Field(description="The kind of the super model's selector.")
    sites: dict[Site, Likeness] = Field(description="The sites that took part.")
    between_sites: Range | None = Field(description="Distances between those sites, to compare with.")
    distance: Range | None = Field(
        description="Distance of each image to the nearest site, in units of what is usual for that site's own images."
    )
    delta: list[float | None] | float | None = Field(
        description="The distance beyond which an image is foreign, for each nearest site; null: there is none."
    )
    foreign: Score = Field(description="Share of the images that are foreign.")
    foreign_at_sites: dict[Site, Score] = Field(
        description="The same of the test images of the sites that took part; empty where it is not known."
    )
    used: dict[Model, int] = Field(description="Images that the super model gives to each model.")
    recommended: Literal["super_model", "global"] | None = Field(
        description="The model to use; null: it cannot be told."
    )
    dice: dict[Model, ModelDice] = Field(
        description="Every model on the labelled images, the best first, with `--start` also `start`; empty without"
        " masks."
    )
    unknown: list[str] = Field(description="What cannot be told, and why.")
    start: str | None = Field(description="Path of the model to start from, with `--start`.")
    commands: dict[Name, str] = Field(description="What can be done next, ready to paste: `predict`.")


def onboarding(model: SuperModel, found: Resemblance, shares: dict[str, float], chosen: str | None) -> dict:
    """The values of `Onboarding` that follow from the images without their masks.

    Args:
        model: the super model.
        found: what its selector says of the images.
        shares: site -> share in the model to start from; empty where it is not known.
        chosen: the model that the site should use.
    """
    distances = None if found.of_mean is None else found.of_mean.tolist()
    nearest = found.nearest or {}
    likeness = {
        site: {
            "distance": distances and distances[k],
            "nearest": nearest[site] / found.images if site in nearest else None,
            "share": shares.get(site),
        }
        for k, site in enumerate(model.sites)
    }
    foreign = (model.manifest.get("scores") or {}).get("foreign") or {}
    return {
        "images": found.images,
        "selector": model.manifest["selector"],
        "sites": likeness,
        "between_sites": None if found.between is None else _between(found.between),
        "distance": None if found.distances is None else _range(found.distances, 0.05, 0.95),
        "delta": model.policy.delta,
        "foreign": None if found.foreign is None else found.foreign / found.images,
        "foreign_at_sites": {site: value for site, value in foreign.items() if value is not None},
        "used": found.used,
        "recommended": chosen,
        "unknown": _unknown(model, found),
    }


def _unknown(model: SuperModel, found: Resemblance) -> list[str]:
    kind = model.manifest["selector"]
    if found.nearest is None:
        return [f"which sites it resembles and how foreign it is: the super model has no selector ({kind})"]
    if found.of_mean is None:
        return [f"how far it is from each site and how foreign it is: the selector {kind!r} knows no distances"]
    lost = [site for k, site in enumerate(model.sites) if math.isinf(found.of_mean[k])]
    unknown = [f"the distance to {', '.join(lost)}: no statistics of it are there"] if lost else []
    if found.distances is None:
        unknown.append("how foreign it is: a super model of version 0.1 does not say which distance is usual")
    elif model.policy.delta is None:
        unknown.append(
            "which images are foreign: the super model has no threshold of the distance (delta). Images far above the"
            " usual distance are better off with the global model"
        )
    return unknown


def _between(distances: torch.Tensor) -> dict[str, float] | None:
    count = len(distances)
    pairs = distances[*torch.triu_indices(count, count, offset=1)]
    known = pairs[pairs.isfinite()]
    return _range(known, 0.0, 1.0) if len(known) else None


def _range(values: torch.Tensor, low: float, high: float) -> dict[str, float]:
    quantiles = torch.quantile(values.double(), torch.tensor([low, 0.5, high], dtype=torch.float64))
    return dict(zip(("low", "median", "high"), quantiles.tolist(), strict=True))
