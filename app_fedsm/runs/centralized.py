"""Training on all sites' images in one place: the upper bound for a federation. A plain loop, without FLARE.

Same files, splits, network, loss, optimizer, augmentation, schedule of the learning rate, average over rounds and
scores as a federated run with the same settings; one epoch over all images takes the place of a round, and the model is
the one of the best epoch on all validation images.

    fedsm run --method centralized --task nuclei --data ROOT --rounds 60 --size 96 --out runs/centralized
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from app_fedsm.config.build import build_settings
from app_fedsm.config.names import CENTRALIZED
from app_fedsm.runs.run_folder import PROGRESS, RESULTS, RUN
from fedsm.client.site_file import CACHE_BUDGET
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.settings import JobSettings
from fedsm.core.signing import owner_signer
from fedsm.core.state import copy
from fedsm.core.tensors import Batch
from fedsm.data.augment import augment_batch
from fedsm.data.cache import SiteCache
from fedsm.data.dataset import Part, load_site, seeded_order
from fedsm.data.readers import file_kind
from fedsm.evaluation.candidates import evaluate_candidates, validate_candidates
from fedsm.nets.first_weights import initial_weights
from fedsm.selectors.inference import GLOBAL
from fedsm.server.policy_choice import choose_policy
from fedsm.server.record import Progress
from fedsm.server.results import summarize
from fedsm.server.run_record import sign_run
from fedsm.super_model.artefact import save_super_model, versions
from fedsm.tracks import rate_factor_in
from fedsm.tracks.base import TRAIN, SiteContext
from fedsm.tracks.ema import RoundAverage
from fedsm.tracks.precision import autocast_dtype
from fedsm.tracks.segmentation import SegmentationClient

_NETWORK_OF = "fedavg"  # the method whose network and loss it has


def centralized_settings(given: dict[str, Any]) -> JobSettings:
    """The settings of a centralized run.

    Args:
        given: options of a job, see `build_settings`; None means not given.

    Raises:
        UserError: an invalid setting, or a setting of tracks, which centralized training does not have.
    """
    if given.get("task") is None:
        raise UserError("--task is missing", remedy="see `fedsm run --help`")
    if any(item.startswith("tracks") for item in given.get("overrides") or []):
        raise UserError("centralized training has no tracks", remedy="leave out --set tracks...")
    return build_settings(**given | {"method": _NETWORK_OF}).replace(method=CENTRALIZED)


class Pool:
    """One part (train, validation, test) of all sites as if it were one."""

    def __init__(self, parts: list[Part]):
        self._parts = parts
        self._rows = [(i, row) for i, part in enumerate(parts) for row in range(len(part))]

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, batch_size: int, device: torch.device, seed: int | None = None) -> Iterator[Batch]:
        """The batches of all images of all sites, each image once; shuffled if a seed is given."""
        order = list(range(len(self)))
        if seed is not None:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        for start in range(0, len(order), batch_size):
            rows = [self._rows[i] for i in order[start : start + batch_size]]
            images = torch.cat([self._parts[i].images[torch.tensor([row])] for i, row in rows])
            labels = torch.cat([self._parts[i].labels[torch.tensor([row])] for i, row in rows])
            yield images.to(device), labels.float().to(device)


def train(
    settings: JobSettings, sites: dict[str, dict[str, Part]], device: torch.device, progress: Progress
) -> tuple[dict, list[float]]:
    """Trains one network on all images.

    Args:
        settings: the job's settings; `rounds` are epochs.
        sites: site -> its three parts.
        device: where to compute.
        progress: gets an event for every epoch, like that of a round.

    Returns:
        the weights of the best epoch, and the validation Dice of every epoch.
    """
    pools = {part: Pool([parts[part] for parts in sites.values()]) for part in ("train", "validation")}
    context = SiteContext(0, 1, device, autocast=autocast_dtype(device, settings.amp))
    client = SegmentationClient(settings, {}, context)
    client.receive(TRAIN, initial_weights(client.build, settings.seed))
    average = RoundAverage.before(settings.ema, client.received)
    best, scores = {}, []
    with tqdm(range(1, settings.rounds + 1), desc="centralized", unit="epoch", disable=None) as bar:
        progress.tell("started", sites=list(sites), rounds=settings.rounds, round=0, scores={GLOBAL: "Dice"})
        for epoch in bar:
            began = time.monotonic()
            context.rate_factor = rate_factor_in(settings, epoch)
            for again in range(settings.local_epochs):
                order = seeded_order(settings, "centralized", epoch, again)
                augment_rng = torch.Generator().manual_seed(order)
                for images, labels in pools["train"].batches(settings.batch_size, device, order):
                    client.step(*augment_batch(images, labels, settings.task.augment, augment_rng))
            if settings.ema:
                average = average.after(client.net.state_dict())
                client.average = average.weights
            scores.append(client.validate(TRAIN, pools["validation"].batches(settings.batch_size, device))["score"])
            if scores.index(max(scores)) == len(scores) - 1:
                best = copy(client.average or client.net.state_dict())
            bar.set_postfix_str(f"Dice {scores[-1]:.3f}")
            values = {"answered": list(sites), "missing": {}, "seconds": time.monotonic() - began}
            progress.tell("round", round=epoch, score={GLOBAL: scores[-1]}, **values)
    return best, scores


def run_centralized(settings: JobSettings, root: Path, names: list[str], out: Path, cache: Path | None) -> dict:
    """Trains and tests; writes run.json, results.json and super_model/ as a federated run does.

    Args:
        settings: the job's settings.
        root: the data root.
        names: the sites.
        out: where to write.
        cache: where decoded images are kept; None: in memory.

    Returns:
        the content of results.json.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    caches = {s: SiteCache(cache / s, CACHE_BUDGET, os.cpu_count() or 1) if cache else None for s in names}
    sites = {s: load_site(root / s, s, settings, cache=caches[s]) for s in names}
    out.mkdir(parents=True, exist_ok=True)
    noted = {"data": str(root.resolve()), "settings": settings.to_dict(), "threads": 1}
    write_json(out / RUN, noted | {"cache": str(cache.resolve()) if cache else None})
    (out / PROGRESS).unlink(missing_ok=True)  # of a run that was stopped: this one starts from the beginning
    progress = Progress(out / PROGRESS)
    best, scores = train(settings, sites, device, progress)
    progress.tell("evaluating")

    def batches(site: str, part: str) -> Callable[[], Iterable[Batch]]:
        return lambda: sites[site][part].batches(settings.batch_size, device)

    candidates = {GLOBAL: best}
    validations = {
        s: validate_candidates(settings, names, s, candidates, batches(s, "validation"), device) for s in names
    }
    policy = choose_policy(validations, settings, list(validations))
    tests = {s: evaluate_candidates(settings, names, candidates, batches(s, "test"), device, policy) for s in names}
    for site, parts in sites.items():
        tests[site]["files"] = file_kind(file for part in parts.values() for file, _ in part.files)
    common = {
        "task": settings.task.name, "method": CENTRALIZED, "preset": settings.preset, "selector": "none", "lam": None,
        **policy.to_dict(), "rounds": settings.rounds, "seed": settings.seed, "sites": names,
    }  # fmt: skip
    validation = {"history": scores, "best": {GLOBAL: {"round": scores.index(max(scores)) + 1, "score": max(scores)}}}
    summary = summarize(validations, tests, policy, settings, names)
    validation["super_model"] = summary.pop("super_model_validation")
    files = summary.pop("files")
    images = {s: {part: len(data) for part, data in sites[s].items()} for s in names}
    results = common | {"images": images, "settings": settings.to_dict(), "validation": validation}
    results |= summary
    manifest = common | {"labels": list(settings.task.labels), "versions": versions()}
    manifest |= {"images": images, "scores": results["test"], "files": files, "pooled": True}
    save_super_model(out / "super_model", settings, manifest, {GLOBAL: best}, {})
    write_json(out / RESULTS, results)
    sign_run(out, settings, names, owner_signer())
    progress.tell("finished")
    return results
