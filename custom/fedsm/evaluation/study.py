"""What the report computes from weights and images: scores of each image, t-SNE, loss surfaces, overlays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch

from fedsm.core.tensors import Batch, Tensors
from fedsm.data.cases import Case, SiteCases
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.image_scores import SUPER, ImageScores, super_model
from fedsm.evaluation.loss_surface import DIRECTIONS, loss_surface, norm_of, unit_directions
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.overlays import Shown, pick
from fedsm.evaluation.row_scores import Sites
from fedsm.evaluation.tsne import tsne
from fedsm.selectors.inference import GLOBAL, MIXTURE, personal
from fedsm.selectors.policy import Policy
from fedsm.selectors.selection import Selection
from fedsm.super_model.artefact import SuperModelFiles

MAP_IMAGES = 60  # images of each site on the t-SNE map: exact t-SNE takes N^2
SURFACE_IMAGES = 8  # images of each part for the loss surface
SPAN, STEPS = 1 / 3, 9  # how far the surface goes, as a fraction of the weights' norm, and in how many steps
CPU = torch.device("cpu")


@dataclass
class Study:
    """What the study of a run found; what could not be computed is empty, and `absent` says why.

    Attributes:
        evaluation: as in evaluation.json.
        rows: Dice of single images, to compare runs.
        overlays: site -> best, median and worst image.
        points: site -> (n, 2) t-SNE points, and `tested`: site -> which of them are test images.
        surfaces: (site, part) -> model -> (directions, steps) losses at `steps`.
        absent: why there are no figures that need images.
    """

    evaluation: dict | None = None
    rows: Sites | None = None
    overlays: dict[str, list[Shown]] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    tested: dict[str, np.ndarray] = field(default_factory=dict)
    surfaces: dict[tuple[str, str], dict[str, np.ndarray]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    absent: str = ""


def best_scores(site: str, scores: ImageScores) -> tuple[torch.Tensor, list[str]]:
    """(N,) mean Dice over labels and the model of each image: of the super model, else the site's own, else global."""
    if scores.choices is not None:
        names = ["mixture" if scores.rule == MIXTURE else scores.order[i] for i in scores.choices]
        return scores.scores[SUPER][DICE].mean(1), names
    name = personal(site) if personal(site) in scores.scores else GLOBAL
    return scores.scores[name][DICE].mean(1), [name] * len(scores)


@torch.no_grad()
def pick_overlays(models: Candidates, site: str, cases: SiteCases, scores: ImageScores, policy: Policy) -> list[Shown]:
    """The best, the median and the worst image of a site, with what was predicted."""
    values, names = best_scores(site, scores)
    chosen = pick(values)
    slices = _slices(cases, set(chosen.values()))
    shown = []
    for title, row in chosen.items():
        image, truth = slices[row]
        found = models.predict(image[None], policy)
        output = found[names[row]] if scores.choices is None else _mixed(models, found, scores, row, policy)
        mask = output[0] > 0.5
        shown.append(Shown(image, truth, mask, f"{title}: Dice {values[row]:.3f}", f"by {names[row]}"))
    return shown


def _mixed(
    models: Candidates, found: dict[str, torch.Tensor], scores: ImageScores, row: int, policy: Policy
) -> torch.Tensor:
    """What the super model makes of the networks' probabilities of one image, by what was selected for it."""
    assert scores.choices is not None and scores.yhat is not None
    selection = Selection(scores.choices[row : row + 1], scores.yhat[row : row + 1])
    return super_model(models, found, selection, policy)


def _slices(cases: SiteCases, rows: set[int]) -> dict[int, Batch]:
    """The slices with these indices, counted over all files."""
    found, start = {}, 0
    for case in cases:
        for row in rows & set(range(start, start + len(case.images))):
            found[row] = (case.images[row - start], case.labels[row - start])
        start += len(case.images)
    return found


@torch.no_grad()
def feature_map(models: Candidates, parts: dict[str, list[SiteCases]], done: Callable[[], object]) -> tuple[dict, dict]:
    """The t-SNE map of the selector's features: site -> points, site -> which are test images.

    Args:
        models: the networks.
        parts: site -> its train, validation and test files.
        done: called after each file.
    """
    assert models.selector is not None
    rows, sites, tested = [], [], []
    for site, files in parts.items():
        cases = [case for part in files for case in part]
        slices = [(case, i) for case in cases for i in range(len(case.images))]
        for index in np.linspace(0, len(slices) - 1, min(MAP_IMAGES, len(slices))).round().astype(int):
            case, i = slices[index]
            rows.append(models.selector.features(case.images[i : i + 1])[0].double().numpy())
            sites.append(site)
            tested.append(case.part == "test")
            done()
    points, of_site, is_test = tsne(np.stack(rows)), np.array(sites), np.array(tested)
    return {s: points[of_site == s] for s in parts}, {s: is_test[of_site == s] for s in parts}


def surface_steps(model: SuperModelFiles) -> list[float]:
    """Distances from the trained weights, symmetric around 0."""
    norms = [norm_of(tensors) for name, tensors in model.networks.items() if name != "selector"]
    return (np.linspace(-SPAN, SPAN, STEPS) * np.mean(norms)).tolist()


def surface_directions(model: SuperModelFiles) -> list[Tensors]:
    """Along which all models are moved: one seed for all runs, sites and models."""
    return unit_directions(next(tensors for name, tensors in model.networks.items() if name != "selector"), 0)


def site_surface(
    model: SuperModelFiles, site: str, parts: dict[str, SiteCases], steps: list[float], directions: list[Tensors],
    done: Callable[[], object],
) -> dict[str, dict[str, np.ndarray]]:  # fmt: skip
    """Part -> model -> the loss around the global and the site's own model, on some of the site's images of a part."""
    batches = [_first_images(cases) for cases in parts.values()]
    found: dict[str, dict[str, np.ndarray]] = {part: {} for part in parts}
    for title, name in {"global": GLOBAL, "personal": personal(site)}.items():
        if name in model.networks:
            surfaces = loss_surface(
                model.settings.task, model.networks[name], batches, steps, directions, done
            )  # fmt: skip
            for part, surface in zip(parts, surfaces, strict=True):
                found[part][title] = surface.numpy()
    return found


def _first_images(cases: SiteCases) -> Batch:
    chosen: list[Case] = list(islice(cases, SURFACE_IMAGES))
    images, labels = (torch.cat([getattr(case, part) for case in chosen]) for part in ("images", "labels"))
    return images[:SURFACE_IMAGES], labels[:SURFACE_IMAGES]


def surface_count(model: SuperModelFiles, site: str) -> int:
    """How many losses `site_surface` computes for a part."""
    return DIRECTIONS * STEPS * sum(name in model.networks for name in (GLOBAL, personal(site)))
