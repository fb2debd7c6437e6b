"""What privacy_audit.json holds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsm.core.described import Described, Model, Name, Part, Score, Site


class AuditedRun(Described):
    """The run."""

    task: str = Field(description="The task.")
    method: str = Field(description="The method.")
    rounds: int = Field(description="Rounds in all.")
    sites: list[str] = Field(description="The sites in index order.")
    run_id: str | None = Field(description="Names the run.")


class Sent(Described):
    """Tensors that a job asks of each site."""

    track: str = Field(description="The network that they belong to.")
    phase: Literal["register", "train", "deliver"] = Field(
        description="`register`: once, before round 1. `train`: in each round. `deliver`: once, after the last round."
    )
    what: str = Field(description="What they are, in words.")
    rounds: int = Field(description="Rounds in which the track was trained; 1 for what is sent once.")
    tensors: int = Field(description="How many.")
    values: int = Field(description="Numbers in all of them.")
    bytes: int = Field(description="Bytes each time.")
    shapes: dict[Name, list[int]] = Field(description="The shape of each.")


class SiteTotals(Described):
    """What left one site."""

    images: dict[Part, int] = Field(description="The counts that it registered.")
    rounds: int = Field(description="Rounds in which it answered.")
    merged: int | None = Field(description="Updates that became part of the models; null without accepted.jsonl.")
    up_bytes: int = Field(description="Bytes that it sent, of tensors.")
    down_bytes: int = Field(description="Bytes that it got.")


class Epsilon(Described):
    """A privacy loss that results.json tells of."""

    of: str = Field(description="What it is about: the statistics, or the training.")
    epsilon: float = Field(description="The loss.")
    delta: Score = Field(description="The probability beyond which it holds.")


class Auc(Described):
    """How often an attack is right about a training and a test image."""

    auc: float = Field(description="Area under the ROC curve: the share of pairs in which it is right; 0.5: guessing.")
    low: Score = Field(description="Lower bound of the 95 % interval, by patient; null with too few patients.")
    high: Score = Field(description="Upper bound.")


class Attacks(Described):
    """The attacks on one model."""

    member_loss: float = Field(description="Mean loss on the site's training images.")
    other_loss: float = Field(description="The same on its test images.")
    loss: Auc = Field(description="By the loss alone.")
    calibrated: Auc | None = Field(description="By the loss beside that of the other sites' models; null without any.")


class Counts(Described):
    """Images of a part."""

    images: int = Field(description="How many, slices of volumes.")
    patients: int = Field(description="Of how many patients.")


class SiteAttacks(Described):
    """The attacks at one site."""

    members: Counts = Field(description="Its training images.")
    others: Counts = Field(description="Its test images.")
    references: int = Field(description="Reference models of the calibrated attack.")
    models: dict[Model, Attacks] = Field(description="`personal_own` and `global`, as far as there are.")


class Learn(Described):
    """What others could learn, in words."""

    server: list[str] = Field(description="The server and its operator.")
    sites: list[str] = Field(description="Each other site.")
    readers: list[str] = Field(description="Whoever gets the super model and results.json.")


class AuditFile(Described):
    """privacy_audit.json."""

    run: AuditedRun = Field(description="What was audited.")
    sent: list[Sent] = Field(description="Tensors that left each site.")
    told: list[str] = Field(description="What else left, in words.")
    sites: dict[Site, SiteTotals] = Field(description="Totals of each site.")
    privacy: dict[Site, list[Epsilon]] = Field(description="Sites with differential privacy; empty: none.")
    filters: list[str] = Field(description="Privacy filters that the job asked sites for.")
    learn: Learn = Field(description="What others could learn.")
    attacks: dict[Site, SiteAttacks] = Field(description="Membership inference at each site.")
    missing: dict[Site, str] = Field(description="Sites without attacks, and why.")
    seed: int = Field(description="Of the bootstrap.")
