"""What only the site knows: `fedsm_site.yaml` in its kit's `local/` folder. It never travels.

    data: /data/retina            # this site's folder with images/ and masks/
    state_dir: /data/fedsm_state  # optional: where Adam's moments live (default: the client's workspace)
    device: cuda:0                # optional: default CUDA when present, else the CPU
    threads: 4                    # optional: CPU threads (default: all; in the simulator a fair share)
    cache_dir: /data/fedsm_cache  # optional: where decoded images are kept (default: beside the state)
    cache_budget: 20 GB           # optional: how large it may grow; entries longest unused are dropped (default: 20 GB)
    workers: 4                    # optional: threads that decode images for it (default: as `threads`)
    patient_pattern: "^(P\\d+)_"   # optional: the patient in a file's name; "": each file is a patient. Or write
                                  # a patients.csv. A task's own pattern does not run on a site's file names
    splits: fixed                 # optional: `fixed` splits the images once; `by_seed` lets the job's seed split them
                                  # (default: fixed)
    trainer: process              # optional: `process` trains in a process of its own, whose death costs one round, not
                                  # the job; `inside` in FLARE's (default: process; in the simulator inside)
    max_statistics: 10            # optional: how many different sums the statistics selector may send (default: 10)
    min_patients: 5               # optional: patients in training below which it sends none, nor sums that differ from
                                  # earlier ones by fewer (default: 5)
    statistics_privacy: {epsilon: 1, delta: 1e-5, clip: 4, budget: 1}  # optional: noise on these sums, and the total
                                  # epsilon of all that ever leave (default: epsilon, so one release)

In the simulator one file serves all sites: `data_root` instead of `data`, to which the site's name is added.
Without a file the environment variable FEDSM_DATA_ROOT is taken as `data_root`. That is research on one machine: splits
follow the job's seed (`splits: by_seed`), the task's patient_pattern is used, and `min_patients` is 1. Who decides is
this file, never what comes with a job.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from fedsm.core.errors import UserError
from fedsm.data.site_rules import SiteRules
from fedsm.selectors.private_sums import StatisticsPrivacy

FILE_NAME = "fedsm_site.yaml"
DATA_ROOT_VARIABLE = "FEDSM_DATA_ROOT"
TRAINERS = (PROCESS, INSIDE) = ("process", "inside")
SPLITS = (FIXED, BY_SEED) = ("fixed", "by_seed")
_CHOICES = {"trainer": TRAINERS, "splits": SPLITS}
_TEXTS = ("data", "data_root", "state_dir", "device", "patient_pattern", "cache_dir", *_CHOICES)
_COUNTS = ("threads", "workers", "max_statistics", "min_patients")
_KEYS = (*_TEXTS, *_COUNTS, "cache_budget", "statistics_privacy")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)B", re.IGNORECASE)
CACHE_BUDGET = 20 * 10**9
MAX_STATISTICS, MIN_PATIENTS = 10, 5


class Place(NamedTuple):
    """Where a site's settings are found, in plain values that can be handed to another process.

    Attributes:
        local: the kit's `local/` folder.
        workspace: the client's workspace, where state goes by default.
        site: the site's name.
        fair_share: threads to use where the file does not say.
    """

    local: str
    workspace: str
    site: str
    fair_share: int


@dataclass(frozen=True)
class SiteSettings:
    """A site's own settings, with defaults filled in; `trainer` is None where the file does not say."""

    data: Path
    state_dir: Path
    device: torch.device
    threads: int
    cache_dir: Path
    cache_budget: int
    workers: int
    rules: SiteRules
    max_statistics: int
    min_patients: int
    trainer: str | None = None
    statistics_privacy: StatisticsPrivacy | None = None


def load_site_settings(local: Path, workspace: Path, site: str, fair_share: int) -> SiteSettings:
    """Reads a site's settings.

    Args:
        local: the kit's `local/` folder.
        workspace: the client's workspace, where state goes by default.
        site: the site's name.
        fair_share: threads to use where the file does not say.

    Raises:
        UserError: no data path, or a setting that cannot be used.
    """
    path = local / FILE_NAME
    values = _read(path, site) if path.is_file() else {}
    if not values and os.environ.get(DATA_ROOT_VARIABLE):
        values = {"data_root": os.environ[DATA_ROOT_VARIABLE]}
    if ("data" in values) == ("data_root" in values):
        raise UserError(
            f"site {site!r}: no data path; write `data: /path/to/the/site` (or `data_root:`, not both) to {path},"
            f" or set {DATA_ROOT_VARIABLE}",
            public="the site has no data path yet: it must write fedsm_site.yaml",
        )
    real = "data" in values  # a hospital, not research on one machine
    data = Path(values["data"]) if real else Path(values["data_root"]) / site
    state = Path(values.get("state_dir", workspace / "fedsm_state"))
    threads = values.get("threads", fair_share)
    return SiteSettings(
        data=data,
        state_dir=state / site,
        device=_device(values.get("device"), path, site),
        threads=threads,
        cache_dir=Path(values.get("cache_dir", state.parent / "fedsm_cache")) / site,
        cache_budget=_bytes(values.get("cache_budget", CACHE_BUDGET)),
        workers=values.get("workers", threads),
        rules=SiteRules(
            fixed_splits=values.get("splits", FIXED if real else BY_SEED) == FIXED,
            patient_pattern=values.get("patient_pattern"),
            task_pattern=not real,
        ),
        max_statistics=values.get("max_statistics", MAX_STATISTICS),
        min_patients=values.get("min_patients", MIN_PATIENTS if real else 1),
        trainer=values.get("trainer"),
        statistics_privacy=_privacy(values.get("statistics_privacy")),
    )


def _read(path: Path, site: str) -> dict:
    """The file's values; text and numbers only, known keys only.

    Raises:
        UserError: naming the key and the line.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise UserError(f"site {site!r}: {path} cannot be read: {' '.join(str(e).split())}") from e
    if not isinstance(values, dict):
        raise UserError(f"site {site!r}: {path} must hold `key: value` lines")
    lines = {key.value: key.start_mark.line + 1 for key, _ in root.value} if root else {}
    for key, value in values.items():
        where = f"site {site!r}: {path}, line {lines.get(key, '?')}"
        if key not in _KEYS:
            raise UserError(f"{where}: unknown key {key!r}; known: {', '.join(_KEYS)}")
        if key in _TEXTS and not isinstance(value, str):
            raise UserError(f"{where}: {key} must be text, got {value!r}")
        if key in _COUNTS and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise UserError(f"{where}: {key} must be a whole number of at least 1, got {value!r}")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise UserError(f"{where}: {key} must be {' or '.join(_CHOICES[key])}, got {value!r}")
        if key == "cache_budget" and not _bytes(value):
            raise UserError(f"{where}: cache_budget must be a size as `20 GB` or a number of bytes, got {value!r}")
        if key == "statistics_privacy" and not _privacy(value):
            raise UserError(
                f"{where}: statistics_privacy must be as {{epsilon: 1, delta: 1e-5, clip: 4, budget: 1}}, with"
                f" 0 < epsilon <= 100, 0 < delta < 1, clip above 0 (default: 4) and budget at least epsilon"
                f" (default: epsilon), got {value!r}"
            )
    return values


def _privacy(value: Any) -> StatisticsPrivacy | None:
    """The site's privacy settings; None if they are none that can be used."""
    try:
        privacy = StatisticsPrivacy(**{k: float(v) for k, v in value.items()})  # YAML reads 1e-5 as text
    except (AttributeError, TypeError, ValueError):
        return None
    fits = 0 < privacy.epsilon <= 100 and 0 < privacy.delta < 1 and 0 < privacy.clip < math.inf
    fits = fits and privacy.epsilon <= privacy.total < math.inf
    return privacy if fits else None


def _bytes(value: object) -> int:
    """A size in bytes, from a number or from text as `1.5 GB` (1 GB = 10^9 bytes); 0 if it is no size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(value, 0)
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " ")) if found else 0


def _device(name: str | None, path: Path, site: str) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise UserError(f"site {site!r}: {path}: device {name!r} is none; use cpu, cuda or cuda:N") from e
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"site {site!r}: {path}: device {name!r} asked for, but this machine has no usable CUDA GPU")
    return device
