"""A super model on the images of sites: every candidate and Algorithm 2, with intervals; the selector's confusion."""

from __future__ import annotations

import numpy as np
import torch

from fedsm.evaluation.bootstrap import DRAWS, LEVEL, Resampled, client_average, pooled, resample, site_interval
from fedsm.evaluation.calibration import reliability
from fedsm.evaluation.image_scores import SUPER, ImageScores
from fedsm.evaluation.metrics import DICE, METRICS
from fedsm.super_model.inference import GLOBAL, personal
from fedsm.tracks.base import DIRECT, MIXTURE, THRESHOLD

OWN = "personal_own"
MEAN = "mean"  # beside the labels: their mean


def summarize_images(manifest: dict, scores: dict[str, ImageScores], part: str, seed: int = 0) -> dict:
    """The content of evaluation.json.

    Args:
        manifest: the super model's.
        scores: site -> its images' scores. A site may be one that the super model does not know.
        part: which part of the sites it is.
        seed: of the bootstrap.

    Returns:
        plain values; see the README.
    """
    sites, gamma = manifest["sites"], manifest["gamma"]
    labels = manifest["labels"]
    models: dict[str, dict] = {}
    averages: dict[str, dict] = {}
    for name, by_site in _models(sites, scores, gamma).items():
        drawn = {site: _resampled(by, scores[site].patients, labels, seed, site) for site, by in by_site.items()}
        models[name] = {
            site: {m: {label: site_interval(r) for label, r in by.items()} for m, by in metrics.items()}
            for site, metrics in drawn.items()
        }
        averages[name] = {
            m: {
                label: {
                    "client_avg": client_average([metrics[m][label] for metrics in drawn.values()]),
                    "global": pooled([metrics[m][label] for metrics in drawn.values()]),
                }
                for label in [*labels, MEAN]
            }
            for m in METRICS
        }
    selecting = {site: s for site, s in scores.items() if s.yhat is not None}
    known = {site: s for site, s in selecting.items() if site in sites}
    return {
        "super_model": {key: manifest.get(key) for key in ("task", "method", "selector", "gamma", "sites", "run_id")},
        "part": part,
        "labels": labels,
        "images": {site: len(s) for site, s in scores.items()},
        "patients": {site: len(set(s.patients)) for site, s in scores.items()},
        "unit": {site: s.unit for site, s in scores.items()},
        "bootstrap": {"draws": DRAWS, "level": LEVEL, "by": "patient", "seed": seed},
        "models": models,
        "averages": averages,
        "gammas": _sweep(selecting, manifest["settings"]["gammas"]),
        "selected": {site: _census(s, s.chosen(gamma)) for site, s in selecting.items() if s.rule != MIXTURE},
        "confusion": {site: _first_choices(s) for site, s in selecting.items()},
        "reliability": _reliability(known, sites) if known else None,
    }


def _models(sites: list[str], scores: dict[str, ImageScores], gamma: float | None) -> dict[str, dict]:
    """Row -> site -> metric -> (N, L): the super model, each site's own model, then every candidate."""
    rows: dict[str, dict] = {
        SUPER: {site: s.of_super_model(gamma) for site, s in scores.items() if s.yhat is not None},
        OWN: {site: s.scores[personal(site)] for site, s in scores.items() if personal(site) in s.scores},
    }
    names = next(iter(scores.values())).scores
    for name in [GLOBAL, *map(personal, sites)]:
        if name in names:
            rows[name] = {site: s.scores[name] for site, s in scores.items()}
    return {name: by_site for name, by_site in rows.items() if by_site}


def _resampled(
    metrics: dict[str, torch.Tensor], patients: list[str], labels: list[str], seed: int, site: str
) -> dict[str, dict[str, Resampled]]:
    """Metric -> label (and `mean`) -> draws."""
    result = {}
    for metric, values in metrics.items():
        columns = dict(zip(labels, values.double().T, strict=True)) | {MEAN: values.double().mean(1)}
        result[metric] = {label: resample(column.numpy(), patients, seed, site) for label, column in columns.items()}
    return result


def _sweep(scores: dict[str, ImageScores], gammas: list[float]) -> list[dict]:
    """A row a gamma: mean Dice of Algorithm 2 at each site, over sites and over all images; who was selected."""
    if not scores or any(s.rule != THRESHOLD for s in scores.values()):
        return []
    rows = []
    for gamma in gammas:
        dice = {site: s.of_super_model(gamma)[DICE].double().mean(1) for site, s in scores.items()}
        counts = [_census(s, s.chosen(gamma)) for s in scores.values()]
        rows.append(
            {
                "gamma": gamma,
                "per_site": {site: values.mean().item() for site, values in dice.items()},
                "client_avg": float(np.mean([values.mean().item() for values in dice.values()])),
                "global": torch.cat(list(dice.values())).mean().item(),
                "selected": {model: sum(c[model] for c in counts) for model in counts[0]},
            }
        )
    return rows


def _census(scores: ImageScores, numbers: torch.Tensor) -> dict[str, int]:
    """Model name -> images for which its number is there."""
    return {name: int((numbers == i).sum()) for i, name in enumerate(scores.order)}


def _first_choices(scores: ImageScores) -> dict[str, int]:
    """The same of the most probable models; the global one only where a selector may name it."""
    counts = _census(scores, scores.first_choice())
    return {name: n for name, n in counts.items() if name != GLOBAL or scores.rule == DIRECT}


def _reliability(scores: dict[str, ImageScores], sites: list[str]) -> dict:
    """Of all images of sites that the selector knows."""
    confidence = torch.cat([s.yhat.max(1).values for s in scores.values()])
    right = torch.cat([s.first_choice() == sites.index(site) + 1 for site, s in scores.items()])
    return reliability(confidence.numpy(), right.numpy())
