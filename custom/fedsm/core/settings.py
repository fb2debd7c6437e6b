"""All settings of a job, in one place.

The recipe writes them once, into the server's configuration; the controller sends them to the sites with every task.
So U-Net, labels and learning rates are in one file of a job folder only. A site checks them again: the limits of the
fields, here and in `task_settings.py`, protect it from a hostile job (see `limits.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from fedsm.core.limits import (
    MONTH,
    MOST_DELTA,
    MOST_DELTAS,
    MOST_FACTOR,
    MOST_GAMMAS,
    MOST_PIXELS,
    MOST_RATE,
    MOST_SHARES,
    MOST_SITES,
)
from fedsm.core.model import EXPECTED, Settings, Switch
from fedsm.core.secure_settings import SecureSum, as_secure_sum
from fedsm.core.task_settings import PlainName, TaskSettings

NormCheck = Literal["off", "warn", "clip", "refuse"]
NORM_CHECKS: tuple[str, ...] = get_args(NormCheck)
Selection = Literal["best", "algorithm2"]
VolumeSelection = Literal["best", "slice", "majority"]
Loss = Literal["dice", "dice+ce"]
SiteWeights = Literal["images", "equal"]
WireType = Literal["float32", "bfloat16", "float16", "int8"]
Aggregation = Literal["mean", "trimmed_mean", "median", "multi_krum", "geometric_median"]
GAMMAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
SHARES = (0.0, 0.2, 0.4, 0.6, 1.0)
DELTAS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
Seconds = Annotated[int, Field(ge=1, le=MONTH)]
Rate = Annotated[float, Field(gt=0, le=MOST_RATE)]


class UpdatePrivacy(Settings):
    """Differential privacy of whole sites: noise at the server on the mean of clipped updates."""

    errors_are_public: ClassVar[bool] = True

    clip: float = Field(
        gt=0, le=MOST_FACTOR,
        description="Largest norm of one site's update; longer ones are scaled down. About the usual norm, which"
        " `accepted.jsonl` of a run without it shows. It takes the place of `norm_check`.",
    )  # fmt: skip
    noise_multiplier: float = Field(
        gt=0, le=1e6, description="Standard deviation of the noise, divided by what one site can move the mean."
    )
    delta: float = Field(
        gt=0, lt=1, description="Probability with which epsilon may not hold; choose it well below 1 / number of sites."
    )


class JobSettings(Settings):
    """One job: a task, its tracks, and how long and how patiently they are trained."""

    errors_are_public: ClassVar[bool] = True  # a site gets all of these values from the server

    task: TaskSettings = Field(description="The task: labels, networks, augmentation.")
    tracks: dict[str, Annotated[dict[str, Any], Field(json_schema_extra={EXPECTED: "a track's kind and options"})]] = (
        Field(
            json_schema_extra={EXPECTED: "names of tracks, each with its kind and options"},
            description="The networks that are trained: `global`, `personal` and `selector`, each with its kind and"
            " options, for example `{personal: {kind: softpull, lam: 0.7}}`. A method's file sets them.",
        )
    )
    method: PlainName = Field(default="fedsm", description="The name under which the results are reported.")
    rounds: int = Field(default=150, ge=1, le=100_000, description="Federated rounds. The default is the paper's.")
    local_epochs: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Passes over a site's training images in each round. The default is the paper's.",
    )
    batch_size: int = Field(default=8, ge=1, le=4096, description="Images per training step.")
    size: int = Field(
        default=256, ge=32, le=8192,
        description="Images are resized to size x size pixels. It must be a multiple of the product of the U-Net's"
        " strides (16 for the default U-Net).",
    )  # fmt: skip
    lr: Rate = Field(default=1e-2, description="Adam's learning rate for the U-Nets.")
    selector_lr: Rate = Field(
        default=1e-4, description="Adam's learning rate for a trained selector: the same in every round."
    )
    preset: PlainName = Field(
        default="none", description="The preset that the settings started from. It is only reported."
    )
    loss: Loss = Field(
        default="dice",
        description="What the U-Nets minimise: the Dice loss (the paper's), or with `dice+ce` its mean with the binary"
        " cross entropy.",
    )
    schedule: Literal["constant", "cosine"] = Field(
        default="constant",
        description="How `lr` changes over the rounds: `constant` (the paper's), or `cosine`, from `lr` down towards 0"
        " in the last round.",
    )
    warmup_rounds: int = Field(
        default=0, ge=0, le=100_000,
        description="First rounds, in which the learning rate grows in equal steps to `lr`. Fewer than `rounds`.",
    )  # fmt: skip
    ema: float = Field(
        default=0.0, ge=0, lt=1,
        description="Share of the past in the moving average of a U-Net's weights over the rounds. The average is"
        " validated and becomes the super model; training goes on from the weights themselves. 0: no average.",
    )  # fmt: skip
    site_weights: SiteWeights = Field(
        default="images",
        description="What a site weighs where a network is averaged over sites: as many as its training images (at most"
        " `max_share` times the median), or all the same (`equal`).",
    )
    seed: int = Field(
        default=0, ge=0, le=2**63 - 1,  # what torch's generators take
        description="Fixes the initial weights and the order of batches; in the simulator also the splits.",
    )  # fmt: skip
    min_sites: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="Good answers that a round needs. The default is the fewest that make a federation.",
    )
    fraction: float = Field(
        default=1.0, gt=0, le=1,
        description="Part of the registered sites that is asked in each round, rounded up, and at least `min_sites`."
        " Who is drawn follows from `seed` and the round, and everyone is drawn about equally often. 1: all of them.",
    )  # fmt: skip
    round_timeout: Seconds = Field(
        default=3600, description="Seconds after which a round is closed with the sites that have answered."
    )
    round_retries: int = Field(
        default=2, ge=0, le=1000,
        description="How often a round with fewer than `min_sites` good answers is tried again before the job stops.",
    )  # fmt: skip
    absent_wait: Seconds = Field(
        default=10,
        description="Seconds in which a site that missed its last task must fetch the next one to be waited for. Short,"
        " so that a site that is switched off does not slow the others down.",
    )
    evaluate_timeout: Seconds = Field(
        default=7200,
        description="Seconds for the last task, in which every site tries every candidate model. Longer than"
        " `round_timeout`, because the models are as many as the sites.",
    )
    max_images: int = Field(
        default=1_000_000, ge=1, le=10**9,
        description="Most images of one part (train, validation, test) that a site may register with. Limits the weight"
        " that one site can claim.",
    )  # fmt: skip
    max_share: float = Field(
        default=2.0, ge=1, le=MOST_FACTOR,
        description="Most that one site weighs in an average, as a multiple of the median site's number of images.",
    )  # fmt: skip
    aggregation: Aggregation = Field(
        default="mean",
        description="How the sites' updates of a shared network become one, and the others' models the one that"
        " SoftPull pulls towards: the `mean` (the paper's), or a rule that withstands sites whose updates may be"
        " anything. All but the mean need a higher `min_sites` and more memory at the server.",
    )
    outliers: int = Field(
        default=1, ge=0, le=MOST_SITES // 2,
        description="How many sites `trimmed_mean` and `multi_krum` withstand. 0 is the mean.",
    )  # fmt: skip
    norm_check: NormCheck = Field(
        default="clip",
        description="What is done about an update whose norm is far from the others': `clip` (scale it down to the"
        " usual norm), `refuse`, `warn` (merge it and say so) or `off`. `clip` bounds what one site can do without"
        " losing it.",
    )
    norm_factor: float = Field(
        default=5.0, gt=1, le=MOST_FACTOR,
        description="An update is far when its norm is this many times the median of the last rounds.",
    )  # fmt: skip
    secure_sum: Annotated[SecureSum | None, BeforeValidator(as_secure_sum)] = Field(
        default=None,
        json_schema_extra={EXPECTED: "true, false, or settings (clip, bits, wait)"},
        description="Sum the sites' updates under masks, so that the server sees no single one; see below. It needs"
        " `norm_check: off` and `min_sites` of at least 3. SoftPull's personal models stay at their sites then.",
    )
    quarantine: int = Field(
        default=0, ge=0, le=1000,
        description="After so many warnings (a norm far from the others', an update against theirs, a refused answer; a"
        " round without one takes one off) a site's updates are not merged for `quarantine_rounds` rounds. 0: never.",
    )  # fmt: skip
    quarantine_rounds: int = Field(
        default=5, ge=1, le=100_000, description="Rounds after which a site in quarantine is asked again."
    )
    gammas: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=list(GAMMAS), min_length=1, max_length=MOST_GAMMAS,
        description="Thresholds of Algorithm 2 that are tried on the validation images. Their number is limited: scores"
        " at many close thresholds would tell of single images.",
    )  # fmt: skip
    selection: Selection = Field(
        default="best",
        description="How the super model uses its selector. `best`: what wins on the validation images, among"
        " thresholds on the selector's certainty and on the distance of an image, shares of the global model, and"
        " mirror images. `algorithm2`: the paper's, with a threshold on the certainty alone.",
    )
    shares: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=list(SHARES), min_length=1, max_length=MOST_SHARES,
        description="Shares of the global model beside a personal one that are tried on the validation images. 0 is the"
        " personal model alone, 1 the global one.",
    )  # fmt: skip
    tta: Switch = Field(
        default=True,
        description="Whether the mean of an image's and its mirror image's prediction is tried on the validation images"
        " (test-time augmentation).",
    )
    volume_selection: VolumeSelection = Field(
        default="best",
        description="Which model segments a slice of a volume: the one that the slice selects (`slice`), or for all"
        " slices the one that most of them select (`majority`). `best`: what wins on the validation images; with"
        " `selection: algorithm2` by slice.",
    )
    deltas: list[Annotated[float, Field(gt=0, le=MOST_DELTA)]] = Field(
        default=list(DELTAS), max_length=MOST_DELTAS,
        description="Distances beyond which an image is foreign and goes to the global model, that are tried on the"
        " validation images; 1 is the usual distance of a site's own images. Empty: no image is foreign.",
    )  # fmt: skip
    delta_cost: float = Field(
        default=0.001, ge=0, le=1,
        description="Validation Dice that a site may lose by its `delta`: 1.25 times the smallest that costs it no more"
        " is taken.",
    )  # fmt: skip
    blend: Switch = Field(
        default=False,
        description="Whether soft selection, in which the two most probable models share an image, is scored beside the"
        " hard one.",
    )
    personal_mix: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=[], max_length=MOST_SHARES,
        description="Shares of the other sites' mean that each site's personal model is mixed with after training, to"
        " be tried on its validation images; the best stays, 0 (the model as it was trained) is always tried. Empty:"
        " no mixing.",
    )  # fmt: skip
    update_privacy: UpdatePrivacy | None = Field(
        default=None,
        description="Noise on the shared model that hides whether a site's images were used at all, for methods without"
        " personal models; see below. Default: no noise.",
    )
    wire: WireType = Field(
        default="float32",
        description="How networks travel in training rounds, down and up: `float32` (as they are), `bfloat16` or"
        " `float16` (half the bytes), or `int8` (a quarter: 8 bits, and a scale for 256 values). What rounding leaves"
        " out of an update is added to the site's next one. Last models and candidates travel as they are.",
    )
    personal_models: Literal["memory", "disk"] = Field(
        default="memory",
        description="Where the server keeps the sites' personal networks, and their averages with `ema`: in its memory,"
        " or in files beside the checkpoints, so that its memory does not grow with the number of sites. The weights"
        " are the same.",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, le=1000,
        description="Rounds whose checkpoints stay on the server's disk. Two, so that a damaged one costs a round.",
    )  # fmt: skip
    amp: Switch = Field(
        default=True, description="Whether sites may train in mixed precision; a site's `precision` says in which."
    )
    pin_memory: Switch = Field(
        default=True, description="Pinned host memory, for faster copies to CUDA. Without effect on a CPU."
    )

    @model_validator(mode="after")
    def _batches_fit_into_memory(self) -> Self:
        pixels = self.batch_size * self.size**2
        if pixels > MOST_PIXELS:
            raise ValueError(
                f"batches of {self.batch_size} images of {self.size} x {self.size} have {pixels} pixels, the limit is"
                f" {MOST_PIXELS}: a smaller batch_size or size"
            )
        return self

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        if self.warmup_rounds >= self.rounds:
            raise ValueError(f"warmup_rounds ({self.warmup_rounds}) must be fewer than rounds ({self.rounds})")
        return self
