"""All settings of a job, in one place.

The recipe writes them once, into the server's configuration; the controller sends them to the sites with
every task. So U-Net, labels and learning rates stand in one file of a job folder and nowhere else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from fedsm.core import limits
from fedsm.core.errors import UserError
from fedsm.core.names import check_plain_names

NORM_CHECKS = ("off", "warn", "clip", "refuse")
GAMMAS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)


# What a setting's annotation asks for, as it comes from JSON or YAML.
_KINDS: dict[str, tuple] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "dict": (dict,),
    "list": (list,),
}


def _build(cls, values: dict, where: str):
    """Builds a dataclass from a plain dict; an unknown or missing key is a `UserError`."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a mapping, got {type(values).__name__}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise UserError(f"{where}: unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
    missing = [
        n
        for n, f in known.items()
        if n not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{where}: setting {missing[0]!r} is missing")
    for name, value in values.items():
        kinds = _KINDS.get(str(known[name].type).partition("[")[0], (TaskSettings,))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UserError(f"{where}: setting {name!r} must be {kinds[0].__name__}, got {limits.shown(value)}")
    return cls(**values)


@dataclass
class TaskSettings:
    """What is segmented, and with which networks.

    Attributes:
        name: name of the task.
        channels: image channels (3 colour, 1 grey).
        labels: label name -> mask values that belong to it. Labels may overlap (disc = rim + cup).
        intensity: how pixels become numbers: `unit` (divide by the format's maximum) or
            `percentiles` (1 % .. 99 % of the image or volume to 0..1, for MR).
        unet: arguments of MONAI's U-Net: `channels`, `strides`, `residual_units`, `norm`.
        selector_net: arguments of the VGG-11: `head` (`fc` or `gap`) and `width`.
        background: mask values that belong to no label.
        lam: the task's default SoftPull coefficient.
        augment: augmentation of training batches: `flip` (none, horizontal, both), `rotate` (degrees), `scale` and
            `intensity` (fractions). Empty: none.
        patient_pattern: a regular expression that finds the patient in a file's name; empty: each file is a patient.
            A real site has its own.
    """

    name: str
    channels: int
    labels: dict[str, list[int]]
    intensity: str = "unit"
    unet: dict[str, Any] = field(default_factory=dict)
    selector_net: dict[str, Any] = field(default_factory=dict)
    background: list[int] = field(default_factory=lambda: [0])
    lam: float = 0.7
    augment: dict[str, Any] = field(default_factory=dict)
    patient_pattern: str = ""

    def __post_init__(self):
        check_plain_names([self.name], "task", "name")  # it becomes the name of a job's folder
        if self.channels < 1 or not self.labels:
            raise UserError(f"task {self.name!r}: needs at least one channel and one label")
        where = f"task {self.name!r}"
        if self.channels > limits.MOST_CHANNELS:
            raise UserError(f"{where}: {limits.shown(self.channels)} channels, the limit is {limits.MOST_CHANNELS}")
        limits.check_labels(self.labels, self.background, where)
        limits.check_networks(self.unet, self.selector_net, where)
        limits.check_augment(self.augment, where)
        if self.intensity not in ("unit", "percentiles"):
            raise UserError(f"task {self.name!r}: intensity must be 'unit' or 'percentiles'")

    @property
    def mask_values(self) -> set[int]:
        """All values a mask may hold."""
        return set(self.background).union(*self.labels.values())


@dataclass
class JobSettings:
    """One job: a task, its tracks, and how long and how patiently they are trained.

    Attributes:
        task: the task.
        tracks: track name -> its kind and options, e.g. `{"personal": {"kind": "softpull", "lam": 0.7}}`.
        method: the name under which the results are reported.
        rounds: federated rounds.
        local_epochs: passes over a site's training images each round.
        batch_size: images a step.
        size: images are resized to size x size pixels.
        lr: Adam's learning rate for the U-Nets.
        selector_lr: Adam's learning rate for a trained selector.
        seed: fixes initial weights and the order of batches; in the simulator also splits.
        min_sites: results that a round needs.
        round_timeout: seconds after which a round is closed with those that answered.
        round_retries: how often a round with fewer than `min_sites` good answers is tried again before the job stops.
        absent_wait: seconds in which a site that missed its last task must fetch the next one to be waited for.
        max_images: images of one part that a site may register with.
        max_share: the most that one site weighs in an average, as a multiple of the median site's number of images.
        norm_check: what is done about an update whose norm is far from the others': `clip` (scale it down to the usual
            norm), `refuse`, `warn` (merge it) or `off`. See `fedsm.server.guard`.
        norm_factor: how many times the median norm of the last rounds is far.
        evaluate_timeout: the same for the last task, in which every site tries every candidate.
        gammas: the thresholds of Algorithm 2 that are tried on the validation images.
        blend: whether soft selection (the two most probable models share an image) is scored beside the hard one.
        keep_checkpoints: how many rounds stay on the server's disk.
        amp: autocast on CUDA.
        pin_memory: pinned host memory on CUDA.
    """

    task: TaskSettings
    tracks: dict[str, dict[str, Any]]
    method: str = "fedsm"
    rounds: int = 150
    local_epochs: int = 1
    batch_size: int = 8
    size: int = 256
    lr: float = 1e-3
    selector_lr: float = 1e-4
    seed: int = 0
    min_sites: int = 2
    round_timeout: int = 3600
    round_retries: int = 2
    absent_wait: int = 10
    evaluate_timeout: int = 7200
    max_images: int = 1_000_000
    max_share: float = 2.0
    norm_check: str = "clip"
    norm_factor: float = 5.0
    gammas: list[float] = field(default_factory=lambda: list(GAMMAS))
    blend: bool = False
    keep_checkpoints: int = 2
    amp: bool = True
    pin_memory: bool = True

    def __post_init__(self):
        check_plain_names([self.method], "method", "name")  # as above
        limits.check_whole({name: getattr(self, name) for name in limits.WHOLE})
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:  # what torch's generators take
            raise UserError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")
        if self.norm_check not in NORM_CHECKS:
            raise UserError(f"norm_check must be one of {', '.join(NORM_CHECKS)}, got {self.norm_check!r}")
        if not limits.is_number(self.norm_factor, 1, limits.MOST_FACTOR) or self.norm_factor == 1:
            raise UserError(f"norm_factor must be a number above 1, got {limits.shown(self.norm_factor)}")
        if not limits.is_number(self.max_share, 1, limits.MOST_FACTOR):
            raise UserError(f"max_share must be a number of at least 1, got {limits.shown(self.max_share)}")
        for name in ("lr", "selector_lr"):
            value = getattr(self, name)
            if not limits.is_number(value, 0, limits.MOST_RATE) or value == 0:
                raise UserError(f"{name} must be a positive number up to 1000, got {limits.shown(value)}")
        if not all(isinstance(spec, dict) for spec in self.tracks.values()):
            raise UserError("tracks must map a name to its kind and options")
        if not self.gammas or not all(limits.is_number(gamma, 0, 1) for gamma in self.gammas):
            raise UserError("gammas must be numbers in [0, 1]")
        if len(self.gammas) > limits.MOST_GAMMAS:
            message = f"{len(self.gammas)} gammas, the limit is {limits.MOST_GAMMAS}: more would tell of single images"
            raise UserError(message, public=message)

    @classmethod
    def from_dict(cls, values: dict) -> JobSettings:
        """Builds settings from the plain dict of a job's configuration.

        Raises:
            UserError: unknown, missing or impossible setting.
        """
        values = dict(values)
        if values.get("norm_check") is False:  # YAML's reading of an unquoted off
            values["norm_check"] = "off"
        task = _build(TaskSettings, values.pop("task", None), "task")
        return _build(cls, values | {"task": task}, "job")

    def to_dict(self) -> dict:
        """The plain dict of which `from_dict` makes the same settings again."""
        return dataclasses.asdict(self)
