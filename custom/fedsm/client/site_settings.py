"""A site's own settings: what `fedsm_site.yaml` (`site_file.py`) says, with defaults filled in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fedsm.client.compiler import check_compiler_there
from fedsm.client.devices import site_devices
from fedsm.client.site_file import PrivacyOfTraining, SiteFile
from fedsm.core.errors import UserError
from fedsm.core.yaml_file import read_yaml
from fedsm.data.dicom.place import FOLDER, KEY, ImportPlace
from fedsm.data.site_rules import SiteRules
from fedsm.selectors.private_sums import StatisticsPrivacy
from fedsm.tracks.precision import Precision

FILE_NAME = "fedsm_site.yaml"
DATA_ROOT_VARIABLE = "FEDSM_DATA"
PROCESS, INSIDE = "process", "inside"  # of `trainer`
FIXED, BY_SEED = "fixed", "by_seed"  # of `splits`
MIN_PATIENTS = 5


class SiteLocation(NamedTuple):
    """Where a site's settings are found, in plain values that can be handed to another process.

    Attributes:
        local: the kit's `local/` folder.
        workspace: the client's workspace, where state goes by default.
        site: the site's name.
        fair_share: threads to use where the file does not say.
        simulated: whether it is a site of FLARE's simulator.
    """

    local: str
    workspace: str
    site: str
    fair_share: int
    simulated: bool = False


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
    kit: Path = Path()  # `startup/` of the kit, with the site's certificate
    min_sum: int | None = None
    dp: PrivacyOfTraining | None = None
    precision: Precision | None = None
    devices: tuple[torch.device, ...] = ()  # all that a batch is split over; the first is `device`
    compile: bool = False
    streams: bool = False

    @property
    def imports(self) -> ImportPlace:
        """Where the copy of DICOM files is kept. The key of its names lasts as long as the split."""
        key = None if self.rules.task_pattern else self.state_dir / KEY
        return ImportPlace(self.cache_dir / FOLDER, key)


def load_site_settings(
    local: Path, workspace: Path, site: str, fair_share: int, simulated: bool = False
) -> SiteSettings:
    """Reads a site's settings.

    Args:
        local: the kit's `local/` folder.
        workspace: the client's workspace, where state goes by default.
        site: the site's name.
        fair_share: threads to use where the file does not say.
        simulated: whether it is a site of FLARE's simulator. Only there may the environment say where the images are: a
            hospital with an empty file must not become a site of research because of what is set on its machine.

    Raises:
        UserError: no data path, or a setting that cannot be used; naming the line.
    """
    path = local / FILE_NAME
    file = _read(path, site) if path.is_file() else SiteFile()
    if simulated and not file.model_fields_set and os.environ.get(DATA_ROOT_VARIABLE):
        file = SiteFile(data_root=os.environ[DATA_ROOT_VARIABLE])
    if (file.data is None) == (file.data_root is None):
        raise UserError(
            "no data path" if file.data is None else "`data` and `data_root` are both set",
            site=site,
            remedy=f"write `data: /path/to/the/site` (or `data_root:`, not both) to {path}"
            + (f", or set {DATA_ROOT_VARIABLE}" if simulated else ""),
            public=f"the site has no data path yet: its IT writes `data: FOLDER` to local/{FILE_NAME} in its kit",
        )
    real = file.data is not None  # a hospital; `data_root` is research on one machine
    state = Path(file.state_dir or workspace / "fedsm_state")
    threads = file.threads or fair_share
    devices = site_devices(file.device, file.devices, path, site)
    if len(devices) > 1 and file.trainer == INSIDE:
        raise UserError(
            "several `devices` need a process of their own, and `trainer` is inside", site=site, file=path,
            remedy="leave `trainer` out",
        )  # fmt: skip
    if file.compile:
        check_compiler_there(devices[0], path, site)
    return SiteSettings(
        data=Path(file.data) if file.data is not None else Path(file.data_root or "") / site,
        state_dir=state / site,
        device=devices[0],
        threads=threads,
        cache_dir=Path(file.cache_dir or state.parent / "fedsm_cache") / site,
        cache_budget=file.cache_budget,
        workers=file.workers or threads,
        rules=SiteRules(
            fixed_splits=(file.splits or (FIXED if real else BY_SEED)) == FIXED,
            patient_pattern=file.patient_pattern,
            task_pattern=not real,
        ),
        max_statistics=file.max_statistics,
        min_patients=file.min_patients or (MIN_PATIENTS if real else 1),
        trainer=file.trainer,
        kit=local.parent / "startup",
        min_sum=file.min_sum,
        statistics_privacy=StatisticsPrivacy(**privacy.to_dict()) if (privacy := file.statistics_privacy) else None,
        dp=file.dp,
        precision=file.precision,
        devices=devices,
        compile=file.compile,
        streams=file.streams,
    )


def _read(path: Path, site: str) -> SiteFile:
    source = read_yaml(path, site)
    return SiteFile.from_dict({} if source.content is None else source.content, source=source, site=site)
