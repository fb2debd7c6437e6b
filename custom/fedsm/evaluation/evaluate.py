"""A super model on the images of sites: every candidate and Algorithm 2, with intervals; the selector's confusion."""

from __future__ import annotations

from collections.abc import Sequence

from fedsm.evaluation.bootstrap import DRAWS, LEVEL, client_average, from_errors, pooled
from fedsm.evaluation.calibration import join_reliability
from fedsm.evaluation.image_scores import ImageScores
from fedsm.evaluation.metrics import HD95, METRICS, VOLUME_METRICS
from fedsm.evaluation.row_scores import paired_rows, row_scores
from fedsm.evaluation.site_report import MEAN, Draws, draw, models_of, pairs_of, report_of

FILE = "evaluation.json"


def summarize_images(manifest: dict, scores: dict[str, ImageScores], part: str, seed: int = 0) -> dict:
    """The content of evaluation.json, from the scores of every image.

    Args:
        manifest: the super model's.
        scores: site -> its images' scores. A site may be one that the super model does not know.
        part: which part of the sites' images was scored.
        seed: seed of the bootstrap.

    Returns:
        plain values; see `docs/how-to/evaluate.md`.
    """
    drawn = {site: draw(manifest, site, s, seed) for site, s in scores.items()}
    volumes = {site: draw(manifest, site, s.volumes, seed) for site, s in scores.items()}
    reports = {site: report_of(manifest, site, s, drawn[site], volumes=volumes[site]) for site, s in scores.items()}
    evaluation = join(manifest, reports, part, seed) | {"averages": _drawn_averages(manifest, drawn, METRICS)}
    if evaluation["volumes"]:
        evaluation["volumes"]["averages"] = _drawn_averages(manifest, volumes, VOLUME_METRICS)
    evaluation["paired"] = paired_rows(row_scores(scores), seed)
    evaluation["bootstrap"]["averages"] = "draws"
    return evaluation


def join(manifest: dict, reports: dict[str, dict], part: str, seed: int) -> dict:
    """The content of evaluation.json, from the sites' reports; intervals of averages come from standard errors."""
    selecting = {site: r for site, r in reports.items() if r["confusion"] is not None}
    models = _by_model(manifest, reports)
    images = {site: r["images"] for site, r in reports.items()}
    return {
        "super_model": {key: manifest.get(key) for key in ("task", "method", "selector", "gamma", "sites", "run_id")},
        "part": part,
        "labels": manifest["labels"],
        **{key: {site: r[key] for site, r in reports.items()} for key in ("images", "patients", "unit")},
        "bootstrap": {"draws": DRAWS, "level": LEVEL, "by": "patient", "seed": seed, "averages": "errors"},
        "models": models,
        "averages": _averages(manifest, models, images, METRICS),
        "paired": [_paired(reports, pair) for pair in pairs_of(models)],
        "gammas": _sweep(selecting),
        "selected": {site: r["selected"] for site, r in selecting.items() if r["selected"] is not None},
        "confusion": {site: r["confusion"] for site, r in selecting.items()},
        "reliability": join_reliability([r["reliability"] for r in reports.values() if r["reliability"]]),
        "volumes": _join_volumes(manifest, {site: r["volumes"] for site, r in reports.items() if r["volumes"]}),
    }


def _join_volumes(manifest: dict, reports: dict[str, dict]) -> dict | None:
    """The scores of whole volumes of the sites that have some; None: no site has."""
    if not reports:
        return None
    models = _by_model(manifest, reports)
    volumes, patients = ({site: r[key] for site, r in reports.items()} for key in ("volumes", "patients"))
    return {
        "tolerance": next(iter(reports.values()))["tolerance"],
        "volumes": volumes,
        "patients": patients,
        "models": models,
        "averages": _averages(manifest, models, volumes, VOLUME_METRICS),
    }


def _by_model(manifest: dict, reports: dict[str, dict]) -> dict[str, dict]:
    """Model -> site -> its scores, from the sites' reports."""
    found = {
        model: {site: r["models"][model] for site, r in reports.items() if model in r["models"]}
        for model in models_of(manifest["sites"])
    }
    return {model: by_site for model, by_site in found.items() if by_site}


def _drawn_averages(manifest: dict, drawn: dict[str, Draws], metrics: Sequence[str]) -> dict:
    """Model -> metric -> label -> `client_avg` and `global`, each with the interval of the sites' joint draws."""
    averages: dict[str, dict] = {}
    for model in models_of(manifest["sites"]):
        sites = [by[model] for by in drawn.values() if model in by]
        if sites:
            averages[model] = {
                m: {
                    label: {
                        "client_avg": client_average([s[m][label] for s in sites]),
                        "global": pooled([s[m][label] for s in sites]),
                    }
                    for label in [*manifest["labels"], MEAN]
                }
                for m in metrics
            }
    return averages


def _averages(manifest: dict, models: dict[str, dict], counts: dict[str, int], metrics: Sequence[str]) -> dict:
    """Model -> metric -> label -> `client_avg` and `global`, from the sites' intervals and counts."""
    averages: dict[str, dict] = {}
    for model, by_site in models.items():
        averages[model] = {m: {} for m in metrics}
        for m in metrics:
            most = None if m == HD95 else 1.0
            for label in [*manifest["labels"], MEAN]:
                values = [scores[m][label] for scores in by_site.values()]
                averages[model][m][label] = {
                    "client_avg": from_errors(values, [1] * len(values), most),
                    "global": from_errors(values, [counts[site] for site in by_site], most),
                }
    return averages


def _paired(reports: dict[str, dict], pair: tuple[str, str]) -> dict:
    """Two rows compared on the same images, as `fedsm.evaluation.paired.compare` does it; sites send no p-value."""
    per_site = {}
    for site, report in reports.items():
        for entry in report["paired"]:
            if (entry["first"], entry["second"]) == pair:
                interval = {key: entry[key] for key in ("mean", "low", "high", "error")}
                per_site[site] = interval | {"p": None} | {key: report[key] for key in ("images", "patients")}
    found, images = list(per_site.values()), [value["images"] for value in per_site.values()]
    return {
        "first": pair[0],
        "second": pair[1],
        "per_site": per_site,
        "client_avg": from_errors(found, [1] * len(found), 1.0, -1.0),
        "global": from_errors(found, images, 1.0, -1.0),
        "p": None,
        "images": sum(images),
        "patients": sum(value["patients"] for value in found),
    }


def _sweep(reports: dict[str, dict]) -> list[dict]:
    """One row per gamma: mean Dice of Algorithm 2 at each site, over sites and over all images; the models used."""
    if not reports or not all(r["gammas"] for r in reports.values()):
        return []
    images, rows = sum(r["images"] for r in reports.values()), []
    for columns in zip(*(r["gammas"] for r in reports.values()), strict=True):
        dice = {site: row["dice"] for site, row in zip(reports, columns, strict=True)}
        rows.append(
            {
                "gamma": columns[0]["gamma"],
                "per_site": dice,
                "client_avg": sum(dice.values()) / len(dice),
                "global": sum(d * reports[site]["images"] for site, d in dice.items()) / images,
                "selected": {m: sum(row["selected"][m] for row in columns) for m in columns[0]["selected"]},
            }
        )
    return rows
