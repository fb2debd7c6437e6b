"""A site's own settings: `fedsm_site.yaml` in its kit's `local/` folder. The file never leaves the site.

    data: /data/retina            # this site's folder with images/ and masks/
    cache_budget: 20 GB           # how large the cache of decoded images may grow
    patient_pattern: "^(P\\d+)_"   # the patient in a file's name
    statistics_privacy: {epsilon: 1, delta: 1e-5}

`SiteFile` lists all settings, with their defaults and reasons; only `data` must be set.

In the simulator one file serves all sites: `data_root` instead of `data`, to which the site's name is added.
Without a file the simulator takes the environment variable FEDSM_DATA as `data_root`. That is research on one machine:
splits follow the job's seed (`splits: by_seed`), the task's patient_pattern is used, and `min_patients` is 1. Only this
file decides that, never what comes with a job.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedsm.core.model import EXPECTED, Settings, Switch
from fedsm.core.secure_sum.group import FEWEST
from fedsm.tracks.precision import Precision

CACHE_BUDGET = 20 * 10**9
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)B", re.IGNORECASE)


def _bytes(value: Any) -> Any:
    """A size in bytes from text such as `1.5 GB` (1 GB = 10^9 bytes); other values are returned as they are."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " ")) if found else value


_Number = Annotated[int, Field(ge=1, le=64)]
_GPUs = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=64)]


class PrivacyOfStatistics(Settings):
    """Differential privacy of the sums that the statistics selector sends."""

    epsilon: float = Field(gt=0, le=100, description="Privacy loss of one release of sums; smaller is more private.")
    delta: float = Field(
        gt=0,
        lt=1,
        description="Probability with which epsilon may not hold; choose it well below 1 / number of images.",
    )
    clip: float = Field(
        default=4.0, gt=0,
        description="Largest norm of one image's scaled descriptor; a smaller one needs less noise. 3 and 4 did best on"
        " the synthetic sites.",
    )  # fmt: skip
    budget: float | None = Field(
        default=None, gt=0,
        description="Limit on the sum of epsilon over all releases that the site ever makes. Default: epsilon, which"
        " allows one release.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _enough_for_one_release(self) -> Self:
        if self.budget is not None and self.budget < self.epsilon:
            raise ValueError(f"budget must be at least epsilon ({self.epsilon:g}), got {self.budget:g}")
        return self


class PrivacyOfTraining(Settings):
    """Differential privacy of the networks that are trained at this site."""

    epsilon: float = Field(
        gt=0, le=100, description="Privacy loss of one job for each patient of the site; smaller is more private."
    )
    delta: float = Field(
        gt=0,
        lt=1,
        description="Probability with which epsilon may not hold; choose it well below 1 / number of patients.",
    )
    max_grad_norm: float = Field(
        default=0.1, gt=0,
        description="Largest norm of one image's gradient; longer ones are scaled down, and the noise grows with it. It"
        " should be below most norms: with a Dice loss they were 0.1 to 0.6 on training images of nuclei and breast.",
    )  # fmt: skip
    noise_multiplier: float | None = Field(
        default=None, gt=0, le=1e6,
        description="Standard deviation of the noise, as a multiple of `max_grad_norm`. Default: the smallest with"
        " which the rounds that the job plans cost `epsilon`. With more noise a site can take part in more of them,"
        " with less it stops before the last.",
    )  # fmt: skip
    budget: float | None = Field(
        default=None, gt=0,
        description="Limit on the privacy loss of all jobs that the site ever takes part in. Default: epsilon, which"
        " allows one job.",
    )  # fmt: skip

    @property
    def total(self) -> float:
        """The budget as a number."""
        return self.epsilon if self.budget is None else self.budget

    @model_validator(mode="after")
    def _enough_for_one_job(self) -> Self:
        if self.budget is not None and self.budget < self.epsilon:
            raise ValueError(f"budget must be at least epsilon ({self.epsilon:g}), got {self.budget:g}")
        return self


class SiteFile(Settings):
    """What `fedsm_site.yaml` holds."""

    data: str | None = Field(
        default=None,
        description="This site's folder with `images/` and `masks/`, or with DICOM files. Must be set, unless"
        " `data_root` is.",
    )
    data_root: str | None = Field(
        default=None, description="For the simulator, instead of `data`: a folder with one sub-folder for each site."
    )
    state_dir: str | None = Field(
        default=None,
        description="Where Adam's moments and the split of the images live between rounds. Default: `fedsm_state` in"
        " the client's workspace.",
    )
    device: str | None = Field(
        default=None,
        description="`cpu`, `cuda` or `cuda:N`. Default: CUDA where the machine has it, otherwise the CPU.",
    )
    devices: _Number | _GPUs | None = Field(
        default=None,
        json_schema_extra={EXPECTED: "a number of GPUs from 1 to 64, or a list of GPUs such as [0, 1]"},
        description="GPUs that a batch is split over: how many, or a list of their numbers such as `[0, 1]`. Each but"
        " the first has a process of its own. With `device: cpu` as many processes on the CPU. Default: one.",
    )  # fmt: skip
    precision: Precision | None = Field(
        default=None,
        description="Numbers that networks are trained in: `float32`, or with mixed precision `bfloat16` or `float16`,"
        " unless the job forbids it (`amp: false`). Default: on CUDA `bfloat16` where the GPU computes in it, otherwise"
        " `float16`; on the CPU `float32`.",
    )
    compile: Switch = Field(
        default=False,
        description="Whether torch.compile makes code for the steps of the U-Nets. The first round takes"
        " longer, by up to minutes. Needs a C++ compiler on the machine.",
    )
    streams: Switch = Field(
        default=False,
        description="Whether the networks that a batch steps compute beside each other on the GPU, each on a CUDA"
        " stream of its own. It can be faster with small networks, and takes more of the GPU's memory. On the CPU it"
        " has no effect.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of the training. Default: all cores; in the simulator a fair share.",
    )
    cache_dir: str | None = Field(
        default=None,
        description="Where decoded images are kept, on a disk approved for patient data. Default: `fedsm_cache` beside"
        " the state.",
    )
    cache_budget: Annotated[int, BeforeValidator(_bytes)] = Field(
        default=CACHE_BUDGET, ge=1,
        json_schema_extra={EXPECTED: "a size such as `20 GB`, or a number of bytes"},
        description="How large the cache may grow; entries longest unused are dropped. 20 GB hold about 20,000 colour"
        " images of 256 x 256 pixels.",
    )  # fmt: skip
    workers: int | None = Field(
        default=None, ge=1, description="Threads that decode images for the cache. Default: `threads`."
    )
    patient_pattern: str | None = Field(
        default=None,
        description="Regular expression that finds the patient in a file's name, so that no patient is in two parts of"
        " the split. Empty text: each file is a patient. A `patients.csv` can be used instead. A task's own pattern is"
        " not applied to a site's file names.",
    )
    splits: Literal["fixed", "by_seed"] | None = Field(
        default=None,
        description="`fixed` splits the images once, for all jobs. `by_seed` lets each job's seed split them, for"
        " research with public data. Default: `fixed`; with `data_root` `by_seed`.",
    )
    trainer: Literal["process", "inside"] | None = Field(
        default=None,
        description="`process` trains in a process of its own: if it dies, the site loses one round and not the job."
        " `inside` trains in FLARE's process. Default: `process`; in the simulator `inside`.",
    )
    max_statistics: int = Field(
        default=10, ge=1,
        description="How many different sums the statistics selector may ever send from this site. Differences between"
        " many sums would reveal single images.",
    )  # fmt: skip
    min_patients: int | None = Field(
        default=None, ge=1,
        description="With fewer training patients than this, no sums are sent; nor are sums that differ from earlier"
        " ones by fewer patients. Default: 5; with `data_root` 1.",
    )  # fmt: skip
    min_sum: int | None = Field(
        default=None, ge=FEWEST,
        description="Fewest sites whose updates are summed under masks before the server sees anything of this site's:"
        " a job without `secure_sum`, or with fewer sites, is refused. Default: the job decides.",
    )  # fmt: skip
    statistics_privacy: PrivacyOfStatistics | None = Field(
        default=None,
        description="Noise on these sums, and the limit on their total epsilon. Default: no noise.",
    )
    dp: PrivacyOfTraining | None = Field(
        default=None,
        description="Noise on the training of every network that leaves the site, and the limit on its total privacy"
        " loss, over all jobs. Needs `pip install 'fedsm[dp]'`. Default: no noise.",
    )

    @model_validator(mode="after")
    def _dp_alone(self) -> Self:
        if self.dp and self.compile:
            raise ValueError("`dp` looks at the gradient of each image, which compiled code does not have: compile: no")
        count = len(self.devices) if isinstance(self.devices, list) else self.devices or 1
        if self.dp and count > 1:
            raise ValueError("`dp` draws its batches and its noise in one process: leave `devices` out")
        return self
