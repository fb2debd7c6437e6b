"""All settings of a job, in one place.

The recipe writes them once, into the server's configuration; the controller sends them to the sites with every task.
So U-Net, labels and learning rates stand in one file of a job folder and nowhere else. A site checks them again: the
limits of the fields are what protects it from a hostile job (see `limits.py`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_serializer, field_validator, model_validator

from fedsm.core.limits import (
    MASK_VALUES,
    MONTH,
    MOST_CHANNELS,
    MOST_FACTOR,
    MOST_GAMMAS,
    MOST_LABELS,
    MOST_PIXELS,
    MOST_RATE,
    MOST_VALUES,
    shown,
)
from fedsm.core.model import EXPECTED, Settings, Switch
from fedsm.core.names import is_plain_name

NORM_CHECKS = ("off", "warn", "clip", "refuse")
GAMMAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
# It is shown, written to tables, and put into configurations of which MONAI takes `$...` for a program.
_LABEL = re.compile(r"[^\W_][\w .()-]{0,63}")


def _plain_name(value: str) -> str:
    if not is_plain_name(value):
        raise ValueError(f"{shown(value)} is no plain name: a letter or digit first, then letters, digits and _ . -")
    return value


PlainName = Annotated[str, AfterValidator(_plain_name)]  # it becomes part of the name of a job's folder
MaskValue = Annotated[int, Field(ge=MASK_VALUES[0], le=MASK_VALUES[1])]
MaskValues = Annotated[
    list[MaskValue], Field(min_length=1, max_length=MOST_VALUES, json_schema_extra={EXPECTED: "a list of mask values"})
]
Seconds = Annotated[int, Field(ge=1, le=MONTH)]
Rate = Annotated[float, Field(gt=0, le=MOST_RATE)]


class UNetSettings(Settings):
    """The U-Net of the global and the personal track."""

    channels: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default=[16, 32, 64, 128, 256], min_length=2, max_length=12,
        description="Feature channels of each level, from the image down. The default has 1.6 million parameters,"
        " which a CPU can train.",
    )  # fmt: skip
    strides: list[Annotated[int, Field(ge=1, le=16)]] | None = Field(
        default=None, max_length=12,
        description="Step between two levels, one fewer than `channels`. Default: 2 everywhere, each level halves the"
        " image.",
    )  # fmt: skip
    residual_units: int = Field(
        default=2, ge=0, le=16, description="Residual units of each level; 0: plain convolutions."
    )
    norm: str | list[Any] = Field(
        default=["INSTANCE", {"affine": True}],
        json_schema_extra={EXPECTED: "the name of a norm of MONAI, or a list of its name and its arguments"},
        description="Normalisation layer, as MONAI names it. The default, instance norm, depends on no other image and"
        " keeps no running statistics that sites would have to share.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_stride_between_levels(self) -> Self:
        if self.strides and len(self.strides) != len(self.channels) - 1:
            raise ValueError(
                f"{len(self.channels)} channels need {len(self.channels) - 1} strides, got {len(self.strides)}"
            )
        return self


class SelectorNetSettings(Settings):
    """The VGG-11 of a trained selector."""

    head: Literal["fc", "gap"] = Field(
        default="gap",
        description="`fc`: the paper's three fully connected layers (129 million parameters). `gap`: global average"
        " pooling and one layer (9 million), the default because every parameter travels in every round.",
    )
    width: float = Field(
        default=1.0,
        gt=0,
        le=4.0,
        description="Factor on the width of every layer. 1 is the paper's; smaller for quick runs.",
    )


class AugmentSettings(Settings):
    """Random changes of the training images; with none of them set, images stay as they are."""

    flip: Literal["none", "horizontal", "both"] = Field(
        default="none",
        description="Mirror images at random: left-right (`horizontal`), also up-down (`both`), or not (`none`).",
    )
    rotate: float = Field(default=0.0, ge=0, le=360, description="Largest rotation, in degrees, to either side.")
    scale: float = Field(default=0.0, ge=0, le=10, description="Largest change of size, as a fraction: 0.1 is 10 %.")
    intensity: float = Field(
        default=0.0, ge=0, le=10, description="Largest change of brightness and contrast, as a fraction."
    )


class TaskSettings(Settings):
    """What is segmented, and with which networks."""

    name: PlainName = Field(description="Name of the task. It becomes part of the job's name.")
    channels: int = Field(ge=1, le=MOST_CHANNELS, description="Image channels: 3 for colour, 1 for grey.")
    labels: dict[str, MaskValues] = Field(
        min_length=1, max_length=MOST_LABELS,
        json_schema_extra={EXPECTED: f"1 to {MOST_LABELS} labels, each with a list of its mask values"},
        description="Name of each label and the mask values that belong to it. Labels may overlap: a disc is rim and"
        " cup.",
    )  # fmt: skip
    intensity: Literal["unit", "percentiles"] = Field(
        default="unit",
        description="How pixels become numbers from 0 to 1. `unit`: divided by the largest value of the file's format,"
        " for pictures. `percentiles`: 1 % to 99 % of the image or volume, for MR, whose values have no fixed range.",
    )
    unet: UNetSettings = Field(default=UNetSettings(), description="The U-Net; see below.")
    selector_net: SelectorNetSettings = Field(
        default=SelectorNetSettings(), description="The network of a trained selector; see below."
    )
    background: MaskValues = Field(default=[0], description="Mask values that belong to no label.")
    lam: float = Field(
        default=0.7, ge=0, le=1,
        description="SoftPull's coefficient: the share of a site's own model in its next personal model. The paper uses"
        " 0.7 where sites differ much, 0.3 where they are alike.",
    )  # fmt: skip
    augment: AugmentSettings = Field(
        default=AugmentSettings(), description="Augmentation of training batches; see below."
    )
    patient_pattern: str = Field(
        default="",
        description="Regular expression that finds the patient in a file's name. Empty: each file is a patient. Used in"
        " the simulator only; a real site has its own.",
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _names_of_labels(cls, labels: Any) -> Any:
        for label in labels if isinstance(labels, dict) else ():
            if not isinstance(label, str):
                raise ValueError(f"the names of labels must be text; put {shown(label)} in quotes")
            if not _LABEL.fullmatch(label):
                raise ValueError(
                    f"{shown(label)} is no name of a label: a letter or digit first, then letters, digits, blanks and"
                    " _ . ( ) -, 64 at most"
                )
        return labels

    @field_serializer("unet", "selector_net", "augment")
    def _as_given(self, part: Settings) -> dict[str, Any]:
        """A job says of its networks what the task says, so that a folder of an older version reads the same."""
        return part.model_dump(exclude_unset=True)

    @property
    def mask_values(self) -> set[int]:
        """All values a mask may hold."""
        return set(self.background).union(*self.labels.values())


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
    lr: Rate = Field(default=1e-3, description="Adam's learning rate for the U-Nets.")
    selector_lr: Rate = Field(default=1e-4, description="Adam's learning rate for a trained selector.")
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
    norm_check: Literal["off", "warn", "clip", "refuse"] = Field(
        default="clip",
        description="What is done about an update whose norm is far from the others': `clip` (scale it down to the"
        " usual norm), `refuse`, `warn` (merge it and say so) or `off`. `clip` bounds what one site can do without"
        " losing it.",
    )
    norm_factor: float = Field(
        default=5.0, gt=1, le=MOST_FACTOR,
        description="An update is far when its norm is this many times the median of the last rounds.",
    )  # fmt: skip
    gammas: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        default=list(GAMMAS), min_length=1, max_length=MOST_GAMMAS,
        description="Thresholds of Algorithm 2 that are tried on the validation images. Their number is limited: scores"
        " at many close thresholds would tell of single images.",
    )  # fmt: skip
    blend: Switch = Field(
        default=False,
        description="Whether soft selection, in which the two most probable models share an image, is scored beside the"
        " hard one.",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, le=1000,
        description="Rounds whose checkpoints stay on the server's disk. Two, so that a damaged one costs a round.",
    )  # fmt: skip
    amp: Switch = Field(default=True, description="Mixed precision (autocast) on CUDA. Without effect on a CPU.")
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
