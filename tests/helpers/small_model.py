"""Super models of every kind, with random weights: prediction has to work, not to be right."""

from __future__ import annotations

from pathlib import Path

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.state import prefixed
from fedsm.nets import build_selector, build_unet
from fedsm.selectors.descriptor import DESCRIPTORS, build_descriptor
from fedsm.selectors.gaussian import gaussian_classes, pack, typical_distances
from fedsm.selectors.network_features import encoder_weights
from fedsm.super_model.artefact import save_super_model
from tests.helpers.small_jobs import small_settings

SITES = ["site-1", "site-2"]
# kind -> options of `small_settings`
KINDS = {
    "statistics": {},
    "image+random": {"overrides": ["tracks.selector.descriptor=image+random"]},
    "encoder": {"overrides": ["tracks.selector.descriptor=encoder"]},
    "gradient": {"selector": "gradient"},
    "extra": {"method": "fedsm-extra", "rounds": 4, "overrides": ["tracks.selector.rounds=2"]},
    "ensemble": {"method": "fedsm-ensemble"},
    "fedavg": {"method": "fedavg"},
    "local": {"method": "local"},
}


def write_super_model(
    folder: Path, kind: str = "statistics", gamma: float = 0.5, files: str | None = None, policy: dict | None = None,
    **given,
) -> Path:  # fmt: skip
    """`folder/super_model` of a kind; site k's images have a brightness of their own, see `site_images`.

    `files` says what it was trained on; None: an earlier version, whose manifest does not say. `policy`: what its
    manifest says beside gamma.
    """
    settings = small_settings(**(KINDS[kind] | given))
    torch.manual_seed(1)
    names = (["global"] if kind != "local" else []) + ([f"personal.{s}" for s in SITES] if kind != "fedavg" else [])
    networks = {name: dict(build_unet(settings.task).state_dict()) for name in names}
    if kind not in ("fedavg", "local"):
        networks["selector"] = _selector(settings, kind, networks["global"])
    threshold = gamma if kind not in ("extra", "ensemble", "fedavg", "local") else None
    manifest = {"task": settings.task.name, "method": settings.method, "sites": SITES, "gamma": threshold}
    manifest |= {"selector": kind if kind not in ("fedavg", "local") else "none", "run_id": "0123456789ab"}
    manifest |= ({"files": files} if files else {}) | (policy or {})
    save_super_model(folder / "super_model", settings, manifest, networks, {})
    return folder / "super_model"


def site_images(settings: JobSettings, site: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(site)
    shape = (count, settings.task.channels, settings.size, settings.size)
    return torch.rand(shape, generator=generator) * (0.3 + 0.5 * site)


def _selector(settings: JobSettings, kind: str, weights: dict) -> dict:
    if kind in ("gradient", "extra", "ensemble"):
        return dict(build_selector(settings.task, len(SITES) + (kind != "gradient")).state_dict())
    name = settings.tracks["selector"].get("descriptor", DESCRIPTORS[0])
    encoder = encoder_weights(settings.task, weights) if name == "encoder" else {}
    describe = build_descriptor(name, settings, encoder)
    rows = [describe(site_images(settings, k, 12)) for k in range(len(SITES))]
    sums = [{"n": torch.tensor(12.0, dtype=torch.float64), "sum": r.sum(0), "outer": pack(r.T @ r)} for r in rows]
    scalars = {"shrinkage": torch.tensor(0.1, dtype=torch.float64), "descriptor": torch.tensor(DESCRIPTORS.index(name))}
    classes = gaussian_classes(sums)
    typical = typical_distances(classes, dict(zip(SITES, sums, strict=True)), SITES, 0.1)
    return classes | {"typical": typical} | scalars | prefixed("encoder", encoder)
