"""What is segmented, and with which networks: the part of a job's settings that a task's YAML file holds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_serializer, field_validator, model_validator

from fedsm.core.limits import MASK_VALUES, MOST_CHANNELS, MOST_LABELS, MOST_VALUES, shown
from fedsm.core.model import EXPECTED, Settings
from fedsm.core.names import is_plain_name
from fedsm.core.network_settings import check_network

# A label is shown, written to tables, and put into configurations, where MONAI runs `$...` as code.
_LABEL = re.compile(r"[^\W_][\w .()-]{0,63}")
_CODE_TEXT = r"^[^\\\x00-\x1f\x7f]+$"  # DICOM separates values by backslashes


def _plain_name(value: str) -> str:
    if not is_plain_name(value):
        raise ValueError(f"{shown(value)} is no plain name: a letter or digit first, then letters, digits and _ . -")
    return value


PlainName = Annotated[str, AfterValidator(_plain_name)]  # it becomes part of a job folder's name
MaskValue = Annotated[int, Field(ge=MASK_VALUES[0], le=MASK_VALUES[1])]
MaskValues = Annotated[
    list[MaskValue], Field(min_length=1, max_length=MOST_VALUES, json_schema_extra={EXPECTED: "a list of mask values"})
]


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
    norm: str | list[Any] | None = Field(
        default=["INSTANCE", {"affine": True}],
        json_schema_extra={EXPECTED: "the name of a norm of MONAI, a list of its name and its arguments, or null"},
        description="Normalisation layer, as MONAI names it; null: none. The default, instance norm, depends on"
        " no other image and keeps no running statistics that sites would have to share.",
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


class LabelCode(Settings):
    """What a label is, in a coding scheme that other programs know: for DICOM-SEG."""

    code: str = Field(
        min_length=1, max_length=16, pattern=_CODE_TEXT, description="The code, for example `41216001`; in quotes."
    )
    scheme: str = Field(
        default="SCT", min_length=1, max_length=16, pattern=_CODE_TEXT, description="Coding scheme; `SCT` is SNOMED CT."
    )
    meaning: str = Field(
        min_length=1, max_length=64, pattern=_CODE_TEXT, description="The code in words, for example `Prostate`."
    )
    category: Literal["anatomical", "abnormal", "tissue"] = Field(
        default="anatomical",
        description="The kind of thing: an anatomical structure, a morphologically abnormal structure (a lesion), or a"
        " tissue.",
    )


class TaskSettings(Settings):
    """What is segmented, and with which networks."""

    name: PlainName = Field(description="Name of the task. It becomes part of the job's name.")
    channels: int = Field(
        ge=1,
        le=MOST_CHANNELS,
        description="Image channels: 3 for colour, 1 for grey; of volumes those of the 4th axis.",
    )
    labels: dict[str, MaskValues] = Field(
        min_length=1, max_length=MOST_LABELS,
        json_schema_extra={EXPECTED: f"1 to {MOST_LABELS} labels, each with a list of its mask values"},
        description="Name of each label and the mask values that belong to it. Labels may overlap: a disc is rim and"
        " cup.",
    )  # fmt: skip
    intensity: Literal["unit", "percentiles", "channel_percentiles"] = Field(
        default="unit",
        description="How pixels become numbers from 0 to 1. `unit`: divided by the largest value of the file's format,"
        " for pictures. `percentiles`: 1 % to 99 % of the image or volume, for MR, whose values have no fixed range."
        " `channel_percentiles`: the same of each channel on its own, where they are not of one scale (T2 and ADC).",
    )
    unet: UNetSettings = Field(default=UNetSettings(), description="The U-Net; see below.")
    network: dict[str, Any] = Field(
        default={},
        json_schema_extra={EXPECTED: "the name of a network of MONAI and its arguments: {name: SegResNet, ...}"},
        description="A segmentation network of MONAI in place of the U-Net, by its name and the arguments of its class:"
        " `{name: SegResNet, init_filters: 16}`. Empty: the U-Net.",
    )
    selector_net: SelectorNetSettings = Field(
        default=SelectorNetSettings(), description="The network of a trained selector; see below."
    )
    background: MaskValues = Field(default=[0], description="Mask values that belong to no label.")
    surface_tolerance: float = Field(
        default=2.0, ge=0, le=1000,
        description="Millimetres that a predicted surface may be off and still count as right in the normalized surface"
        " Dice (NSD) of volumes.",
    )  # fmt: skip
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

    codes: dict[str, LabelCode] = Field(
        default={}, max_length=MOST_LABELS,
        json_schema_extra={EXPECTED: "a mapping of labels to codes"},
        description="Code of each label for DICOM-SEG; see below. A label without one gets its own name as a private"
        " code (scheme `99FEDSM`); codes of other labels are not used.",
    )  # fmt: skip

    @field_validator("network")
    @classmethod
    def _known_network(cls, network: dict[str, Any]) -> dict[str, Any]:
        check_network(network)
        return network

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
        """Writes only the values that the task sets, so that a job folder holds what the task's file says."""
        return part.model_dump(exclude_unset=True)

    @property
    def mask_values(self) -> set[int]:
        """All values a mask may hold."""
        return set(self.background).union(*self.labels.values())
