"""What is wrong with the plain values of a site's answer. They come from outside, so every value is checked."""

from __future__ import annotations

import math
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_LOSS, MOST_STEPS_OF_RUN, is_fraction, is_number, is_whole
from fedsm.core.plain_values import MOST_PLAIN_MESSAGE
from fedsm.core.secure_sum.group import PublicKey
from fedsm.core.task_names import OPEN, REGISTER, SUM, TASKS, TRAIN, VALIDATE
from fedsm.core.tensors import Tensors
from fedsm.server.results_file import Privacy, TrainingPrivacy
from fedsm.tracks.base import Phase, ServerTrack

PARTS = ("train", "validation", "test")
_PHASES = {
    REGISTER: Phase.REGISTER, TRAIN: Phase.TRAIN, SUM: Phase.TRAIN, OPEN: Phase.TRAIN, VALIDATE: Phase.DELIVER
}  # fmt: skip
_META = ("round", "images", "reports", "losses", "evaluation", "mix", "dp")
# What the framing of an entry may cost on top of its values; a filter may have turned float32 into float64.
_VALUE_BYTES, _ENTRY_BYTES, _FRAME_BYTES = 8, 1024, 64 * 1024
_OWN_TYPE = (torch.int8, torch.bfloat16, torch.float16)  # of a rounded entry: no filter can have changed it


class Refused(Exception):
    """An answer that is not taken; the message says why. `answered` is False for a site that reported a failure."""

    def __init__(self, reason: str, answered: bool = True):
        super().__init__(reason)
        self.answered = answered


def known_meta(meta: dict) -> dict:
    """The entries of a meta that we read; filters add others, which are dropped."""
    return {key: meta[key] for key in _META if key in meta}


def most_bytes(templates: dict[str, Tensors]) -> int:
    """The most bytes that a good answer can have."""
    entries = [t for template in templates.values() for t in template.values()]
    return _FRAME_BYTES + sum(_bytes_of(t) + _ENTRY_BYTES for t in entries)


def _bytes_of(template: torch.Tensor) -> int:
    """The most bytes of a good entry: one that is rounded has its own type, others may be float64."""
    return template.nbytes if template.dtype in _OWN_TYPE else _VALUE_BYTES * template.numel()


def most_message(tracks: dict[str, ServerTrack]) -> int:
    """The most bytes of any message of a job: its largest answer, if it comes in one message, and plain values."""
    return MOST_PLAIN_MESSAGE + max(most_bytes(templates_of(task, tracks)) for task in TASKS)


def counts_problem(images: Any, limits: dict[str, int], why: str) -> str | None:
    """What is wrong with a site's image counts, given the most that each may be and why."""
    if not isinstance(images, dict):
        return "image counts are missing"
    for part in PARTS:
        count = images.get(part)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            return f"count of {part} images is {count!r}, expected a positive whole number"
        if count > limits[part]:
            return f"claims {count} {part} images, {why} {limits[part]}"
    return None


def losses_problem(losses: Any, playing: dict[str, ServerTrack]) -> str | None:
    """What is wrong with the losses of a round."""
    if not isinstance(losses, dict) or set(losses) - set(playing):
        return "losses are malformed"
    if not all(isinstance(v, float) and abs(v) <= MOST_LOSS for v in losses.values()):
        return f"a loss is no number in [-{MOST_LOSS:g}, {MOST_LOSS:g}]"
    return None


def reports_problem(reports: Any, playing: dict[str, ServerTrack], images: int) -> str | None:
    """What is wrong with a site's validation reports; `images` is its number of validation images."""
    if not isinstance(reports, dict) or set(reports) - set(playing):
        return "validation reports are malformed"
    for name, report in reports.items():
        if not isinstance(report, dict) or report.get("images") != images or isinstance(report["images"], bool):
            return f"validation report of track {name!r} is malformed"
        if not is_fraction(report.get("score")):
            return f"validation score of track {name!r} is not a number in [0, 1]"
    return None


def phase_of(task: str) -> Phase | None:
    """The tracks' phase in which a task is; None for one in which tracks send nothing."""
    return _PHASES.get(task)


def templates_of(task: str, tracks: dict[str, ServerTrack]) -> dict[str, Tensors]:
    """Track -> what an answer to a task must hold; tracks that send nothing are left out."""
    phase = phase_of(task)
    templates = {name: track.expects(phase) for name, track in tracks.items()} if phase else {}
    return {name: template for name, template in templates.items() if template}


def key_problem(key: Any) -> str | None:
    """What is wrong with a site's public key for secure sums."""
    try:
        PublicKey.from_dict(key)
    except UserError as e:
        return f"its key for secure sums: {e.what}"
    return None


def exact_problem(tracks: dict[str, Tensors], expected: dict[str, Tensors]) -> str | None:
    """What is wrong with tensors that must have just these keys, shapes and types, or None."""
    for name, template in expected.items():
        sent = tracks.get(name, {})
        if sent.keys() != template.keys():
            return f"entries of {name!r} are not those that were asked for"
        for key, wanted in template.items():
            if (sent[key].shape, sent[key].dtype) != (wanted.shape, wanted.dtype):
                return f"{name!r} is of another shape or type"
    return None


def privacy_problem(report: Any) -> str | None:
    """What is wrong with a site's report on its private statistics (`PrivateSums.report`)."""
    if not isinstance(report, dict) or report.keys() != Privacy.model_fields.keys():
        return "what it says of privacy is malformed"
    numbers = all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in report.values())
    return None if numbers else "what it says of privacy is malformed"


def dp_problem(report: Any) -> str | None:
    """What is wrong with a site's report on the privacy of its training (`PrivateTraining.report`)."""
    wrong = "what it says of its private training is malformed"
    if not isinstance(report, dict) or report.keys() != TrainingPrivacy.model_fields.keys():
        return wrong
    if not is_whole(report["steps"], 1, MOST_STEPS_OF_RUN):
        return wrong
    # By their type: numpy's numbers could not be written into a checkpoint.
    numbers = all(type(v) in (int, float) and is_number(v, 0, MOST_LOSS) for v in report.values())
    fractions = numbers and 0 < report["delta"] < 1 and 0 < report["sample_rate"] <= 1
    return None if fractions else wrong
