"""What a run leaves: the best models, the super model and results.json."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from fedsm.core.files import write_json
from fedsm.core.model_store import opened
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.selectors.inference import GLOBAL
from fedsm.selectors.policy import Policy
from fedsm.server.checkpoint import Checkpoints
from fedsm.server.memory import peak_bytes
from fedsm.server.record import RunRecord
from fedsm.server.update_loss import noisy_rounds, update_loss
from fedsm.super_model.artefact import save_super_model, versions
from fedsm.tracks import lam_of
from fedsm.tracks.base import DELIVER, ServerTrack

_MB = 1024 * 1024


def best_models(tracks: dict[str, ServerTrack], record: RunRecord, checkpoints: Checkpoints) -> dict[str, Tensors]:
    """The models that make the super model: each from its best validation round. They must not be changed.

    The global model stands in for a personal one whose site was gone when models were handed over.
    """
    models: dict[str, Tensors] = {}
    for name, track in tracks.items():
        files = track.files()
        for model in track.models():
            if best := record.best.get(model):  # it may have been handed over at the end of an earlier part of the run
                models[model] = checkpoints.map_weights(best["file"])
            elif model in files:
                models[model] = opened(files[model])
        if not track.models() and (final := track.payload(DELIVER, record.sites[0])):
            models[name] = final
    for model in [m for track in tracks.values() for m in track.models() if m not in models]:
        if GLOBAL in models:
            models[model] = models[GLOBAL]
    return models


def _common(job: JobSettings, record: RunRecord, summary: dict) -> dict:
    return {
        "task": job.task.name,
        "method": job.method,
        "preset": job.preset,
        "selector": job.tracks.get("selector", {}).get("kind", "none").removeprefix("selector_"),
        "lam": lam_of(job),
        "personal_mix": record.personal_mix,
        **{key: summary[key] for key in (*asdict(Policy()), "hard_gamma", "blend_gamma")},
        "rounds": job.rounds,
        "seed": job.seed,
        "sites": record.sites,
        "run_id": record.run_id,
    }


def write_super_model(
    folder: Path, job: JobSettings, record: RunRecord, models: dict[str, Tensors], summary: dict
) -> None:
    """Writes `super_model/` to the run's folder."""
    notes = {model: {"round": b["round"], "validation_score": b["score"]} for model, b in record.best.items()}
    manifest = _common(job, record, summary) | {"labels": list(job.task.labels), "versions": versions()}
    manifest |= {"images": record.images, "files": summary["files"], "scores": summary["test"]}
    save_super_model(folder / "super_model", job, manifest, models, notes)


def measurements(record: RunRecord, started: float, start_bytes: int) -> dict:
    """The part of results.json that is about images, bytes, seconds, memory and what was refused."""
    return {
        "images": {site: record.images[site] for site in record.sites if site in record.images},
        "refused": record.refused,
        "warned": record.warned,
        "uncounted": record.uncounted,
        "quarantined": record.quarantined,
        "dp": record.dp,
        "wire": dict(record.wire),
        "seconds": {"round": [row["seconds"] for row in record.history], "total": time.monotonic() - started},
        "peak_rss_mb": {"server": round(peak_bytes() / _MB, 1), "server_start": round(start_bytes / _MB, 1)},
    }


def write_results(folder: Path, job: JobSettings, record: RunRecord, summary: dict, measured: dict) -> None:
    """Writes `results.json` to the run's folder; `measured` holds what only the controller knows."""
    results = _common(job, record, summary) | {
        "settings": job.to_dict(),
        "tracks": record.facts,
        "test": summary["test"],
        "policies": summary["policies"],
        "gamma_sweep": summary["gamma_sweep"],
        "validation": {
            "history": record.history,
            "best": record.best,
            "super_model": summary["super_model_validation"],
        },
    }
    if job.update_privacy:
        results["update_privacy"] = update_loss(job.update_privacy, noisy_rounds(job, record.history))
    write_json(folder / "results.json", results | measured)
