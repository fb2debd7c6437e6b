"""One site's part of an evaluation: means, intervals and counts over its images, nothing about a single image.

In a federated evaluation it leaves the site. With fewer than `LEAST_PATIENTS` patients the bounds of a bootstrap
interval are the scores of single patients (of three, the worst alone is drawn in 1 of 27 samples, more than the 2.5 %
below the lower bound), so such bounds stay at the site.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

import torch

from fedsm.evaluation.bootstrap import Resampled, difference, resample, site_interval
from fedsm.evaluation.calibration import reliability
from fedsm.evaluation.image_scores import SUPER, ImageScores
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.volume_scores import VolumeScores
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, personal

OWN = "personal_own"
MEAN = "mean"  # beside the labels: their mean
LEAST_PATIENTS = 4

Draws = dict[str, dict[str, dict[str, Resampled]]]  # model -> metric -> label (and `mean`) -> draws


class Scored(Protocol):
    """The scores of a site's images or volumes: the patient of each, and model name -> metric -> (N, L)."""

    patients: list[str]
    scores: dict[str, dict[str, torch.Tensor]]


def models_of(sites: list[str]) -> list[str]:
    """The rows of an evaluation: the super model, each site's own model, then every candidate."""
    return [SUPER, OWN, GLOBAL, *map(personal, sites)]


def pairs_of(models: Container[str]) -> list[tuple[str, str]]:
    """The pairs of rows that are compared image by image, as far as both are there."""
    pairs = ((SUPER, GLOBAL), (SUPER, OWN), (OWN, GLOBAL))
    return [pair for pair in pairs if all(model in models for model in pair)]


def metrics_of(site: str, scores: Scored, model: str) -> dict[str, torch.Tensor] | None:
    """Metric -> (N, L) of one of `models_of`; None where the site has no scores of it."""
    return scores.scores.get(personal(site) if model == OWN else model)


def draw(manifest: dict, site: str, scores: Scored | None, seed: int) -> Draws:
    """The bootstrap of all scores of a site; models without scores are left out."""
    if scores is None:
        return {}
    labels, patients = manifest["labels"], scores.patients
    drawn: Draws = {}
    for model in models_of(manifest["sites"]):
        if (metrics := metrics_of(site, scores, model)) is None:
            continue
        drawn[model] = {}
        for metric, values in metrics.items():
            columns = dict(zip(labels, values.double().T, strict=True)) | {MEAN: values.double().mean(1)}
            drawn[model][metric] = {k: resample(v.numpy(), patients, seed, site) for k, v in columns.items()}
    return drawn


def report_of(
    manifest: dict, site: str, scores: ImageScores, drawn: Draws, private: bool = False, volumes: Draws | None = None
) -> dict:
    """A site's report.

    Args:
        manifest: the super model's.
        site: the site. The super model need not know it.
        scores: its images' scores.
        drawn: their bootstrap.
        private: the report leaves the site: no intervals below `LEAST_PATIENTS`.
        volumes: the bootstrap of `scores.volumes`.

    Returns:
        plain values: `images`, `patients`, `unit`; `models`: model -> metric -> label -> interval; `paired`: the
        interval of the difference in Dice of `first` and `second`, for each of `pairs_of`; `gammas`: one row per gamma
        with `dice` and `selected`; `selected` and `confusion`: model -> images; `reliability` or None; `volumes`: of
        whole volumes their number, patients, tolerance and `models`, or None where there are none.
    """
    sites = manifest["sites"]
    selects, patients = scores.yhat is not None, len(set(scores.patients))
    bounds = _may_have_bounds(scores, private)
    return {
        "images": len(scores),
        "patients": patients,
        "unit": scores.unit,
        "models": _intervals(drawn, bounds),
        "paired": [
            {"first": a, "second": b} | site_interval(difference(drawn[a][DICE][MEAN], drawn[b][DICE][MEAN]), bounds)
            for a, b in pairs_of(drawn)
        ],
        "gammas": _sweep(scores, manifest["settings"]["gammas"]) if selects and scores.rule == THRESHOLD else [],
        "selected": None if scores.choices is None or scores.rule == MIXTURE else _census(scores, scores.choices),
        "confusion": _first_choices(scores) if selects else None,
        "reliability": _reliability(scores, sites.index(site) + 1) if selects and site in sites else None,
        "volumes": _volume_report(scores.volumes, volumes or {}, private),
    }


def _volume_report(scores: VolumeScores | None, drawn: Draws, private: bool) -> dict | None:
    if scores is None:
        return None
    return {
        "tolerance": scores.tolerance,
        "volumes": len(scores),
        "patients": len(set(scores.patients)),
        "models": _intervals(drawn, _may_have_bounds(scores, private)),
    }


def _may_have_bounds(scores: Scored, private: bool) -> bool:
    return not private or len(set(scores.patients)) >= LEAST_PATIENTS


def _intervals(drawn: Draws, bounds: bool) -> dict:
    """Model -> metric -> label -> interval."""
    return {
        model: {m: {label: site_interval(r, bounds) for label, r in by.items()} for m, by in metrics.items()}
        for model, metrics in drawn.items()
    }


def _sweep(scores: ImageScores, gammas: list[float]) -> list[dict]:
    return [
        {
            "gamma": gamma,
            "dice": scores.at_gamma(gamma)[DICE].double().mean(1).mean().item(),
            "selected": _census(scores, scores.chosen(gamma)),
        }
        for gamma in gammas
    ]


def _census(scores: ImageScores, numbers: torch.Tensor) -> dict[str, int]:
    """Model name -> for how many images its index is in `numbers`."""
    return {name: int((numbers == i).sum()) for i, name in enumerate(scores.order)}


def _first_choices(scores: ImageScores) -> dict[str, int]:
    """Model name -> for how many images it was the most probable; the global model only if the selector can name it."""
    counts = _census(scores, scores.first_choice())
    return {name: n for name, n in counts.items() if name != GLOBAL or scores.rule != THRESHOLD}


def _reliability(scores: ImageScores, own: int) -> dict:
    """`own`: the index of the site's own model."""
    assert scores.yhat is not None
    return reliability(scores.yhat.max(1).values.numpy(), (scores.first_choice() == own).numpy())
