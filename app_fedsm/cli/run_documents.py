"""The `data` of commands that run, follow or evaluate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsm.core.described import Described, Name, Row, Score, Site
from fedsm.evaluation.evaluation_file import EvaluationFile


class Means(Described):
    """The two means of a row."""

    client_avg: Score = Field(description="Mean over the sites' means.")
    all_images: Score = Field(description="Mean over all images of all sites; `global` in results.json.")


class DiceRow(Means):
    """The Dice of one model."""

    worst_site: Site | None = Field(description="The site with the lowest Dice.")
    worst: Score = Field(description="That Dice.")
    spread_over_sites: Score = Field(description="Standard deviation (n - 1) of the sites' Dice; null of one site.")


class RunResults(Described):
    """The results of a finished run in short."""

    file: str = Field(description="Path of results.json, which holds everything.")
    gamma: float | None = Field(description="The threshold of Algorithm 2; null without a selector that has one.")
    test_images: dict[Site, int] = Field(description="How many test images each site has.")
    test_dice: dict[Row, DiceRow] = Field(
        description="Test Dice of `global`, `personal_own`, `algorithm2`, `super_model` and `blend`, as far as the"
        " method has them."
    )
    selector_accuracy: Means | None = Field(description="How often the selector names the image's own site.")


class RunEnd(Described):
    """Where a run stands when the command ends."""

    run: str = Field(description="The run's folder.")
    state: Literal["submitted", "running", "finished", "failed", "stopped"] = Field(
        description="`submitted`: with `--no-wait`. `running`: the command was stopped, the job on the server goes on."
    )
    job_id: str | None = Field(description="The id of the job on a server; null in the simulator.")
    sites: list[str] = Field(description="The sites that take part.")
    rounds: int = Field(description="The rounds that were asked for.")
    rounds_done: int = Field(description="The rounds that are closed.")
    checkpoint: str | None = Field(description="The newest checkpoint on this machine.")
    results: RunResults | None = Field(description="Of a finished run.")
    super_model: str | None = Field(description="The super model's folder, of a finished run.")
    commands: dict[Name, str] = Field(
        description="What can be done next, ready to paste: `report`, `evaluate` and `predict` of a finished run;"
        " `resume`, or `fetch` and `status`, of another."
    )


class SiteNotes(Described):
    """Answers of one site that were refused, or taken with a warning."""

    site: str = Field(description="The site.")
    times: int = Field(description="How many.")
    last_reason: str = Field(description="The reason for the last one.")


class Quarantined(Described):
    """A site whose updates are not merged for some rounds."""

    site: str = Field(description="The site.")
    until: int = Field(description="The last round in which it is not asked.")
    reason: str = Field(description="The last warning.")


class TrackScore(Described):
    """A validation score."""

    track: str = Field(description="The track: `global`, `personal` or `selector`.")
    measure: str = Field(description="What it is: `Dice` or `accuracy`.")
    value: Score = Field(description="The mean over all validation images.")


class JobStatus(Described):
    """How far a job is."""

    state: Literal[
        "submitted", "starting", "training", "validating", "evaluating", "finished", "failed", "ended", "lost"
    ] = Field(
        description="`evaluating`: at the end of a run, or all that an evaluation does. `ended`: FLARE ended the job,"
        " see `flare_status`. `lost`: FLARE lists it as running, but the server does not run it."
    )
    job_id: str | None = Field(default=None, description="The id of the job on a server; null in the simulator.")
    name: str | None = Field(default=None, description="The job's name on the server, in a list of jobs.")
    flare_status: str | None = Field(default=None, description="FLARE's word, for example `FINISHED:COMPLETED`.")
    sites: list[str] = Field(default=[], description="The sites that take part; empty where it is not known.")
    rounds: int | None = Field(default=None, description="The rounds that were asked for.")
    round: int | None = Field(default=None, description="The last round that was closed; 0: none.")
    answered: list[str] = Field(
        default=[], description="The sites that answered in that round; of an evaluation, those that have scored."
    )
    missing: dict[Site, str] = Field(default={}, description="The sites that did not, and why.")
    asked: int | None = Field(default=None, description="With `fraction`: how many sites were asked in that round.")
    refused: list[SiteNotes] = Field(default=[], description="Sites whose answers were refused, in the whole run.")
    warned: list[SiteNotes] = Field(default=[], description="Sites whose answers were taken with a warning.")
    quarantined: list[Quarantined] = Field(default=[], description="Sites that are in quarantine now.")
    validation: list[TrackScore] = Field(default=[], description="The newest validation scores.")
    seconds_left: float | None = Field(default=None, description="Guess of the training time left, while it trains.")
    reason: str | None = Field(
        default=None, description="Why it failed; in a list of jobs that have ended, of the newest only."
    )


class RunStatus(JobStatus):
    """With RUN: how far that run is."""

    run: str = Field(description="The run's folder.")
    command: str | None = Field(
        default=None, description="What to do next with a run of a federation whose result is not here yet."
    )


class ServerStatus(Described):
    """A server and its jobs: `--kit`, and `fedsm poc status`."""

    server: str = Field(description="Host and port.")
    study: str = Field(description="The study that was asked about.")
    connected: list[str] = Field(description="The sites of the study that are connected.")
    not_connected: list[str] = Field(description="The sites of a POC that are not; elsewhere empty.")
    jobs: list[JobStatus] = Field(
        description="The jobs that the server knows, the oldest first; keys as with RUN, but for `run`."
    )


class EvaluationEnd(Described):
    """An evaluation and its files."""

    evaluation: EvaluationFile = Field(description="The content of [evaluation.json](results.md#evaluationjson).")
    files: dict[Name, str] = Field(
        description="Paths of what was written: `json`, `markdown`, `csv`, `card` for test images, and"
        " `image_scores` where the images were at hand."
    )
