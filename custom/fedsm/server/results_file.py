"""What results.json holds: the classes that its reference page is made of. `results.py` and `outcome.py` write it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fedsm.core.described import Described, Label, Model, Part, Score, Site, Track


class LabelRow(Described):
    """A row of the paper's tables for one label."""

    per_site: dict[Site, Score] = Field(description="Mean Dice of the site's test images; null: it did not answer.")
    client_avg: Score = Field(description="Mean over sites.")
    global_: Score = Field(alias="global", description="Mean over all images.")


class DiceRow(LabelRow):
    """A row of the paper's tables."""

    per_label: dict[Label, Score] = Field(description="Mean over sites of each label.")


class SelectorAccuracy(Described):
    """How often the selector names the image's own site."""

    per_site: dict[Site, Score] = Field(description="Share of the site's test images.")
    mean: Score = Field(description="Mean over sites.")


class LabelTables(Described):
    """The tables of one label."""

    global_: LabelRow | None = Field(default=None, alias="global", description="The global model.")
    personal_own: LabelRow | None = Field(default=None, description="Each site's own personal model.")
    algorithm2: LabelRow | None = Field(default=None, description="Algorithm 2, where the super model does more.")
    super_model: LabelRow | None = Field(default=None, description="The super model.")
    blend: LabelRow | None = Field(default=None, description="Soft selection, with `--blend`.")
    candidates: dict[Site, dict[Model, Score]] = Field(description="Every model on every site.")


class DiceTables(Described):
    """Dice on the test images."""

    global_: DiceRow | None = Field(default=None, alias="global", description="The global model.")
    personal_own: DiceRow | None = Field(default=None, description="Each site's own personal model.")
    algorithm2: DiceRow | None = Field(
        default=None,
        description="The paper's Algorithm 2 at `hard_gamma` with the same networks; absent with `selection:"
        " algorithm2`, where it is the super model.",
    )
    super_model: DiceRow | None = Field(
        default=None, description="The super model, with `gamma`, `delta`, `share`, `flip` and `majority`."
    )
    blend: DiceRow | None = Field(default=None, description="Soft selection at `blend_gamma`, with `--blend`.")
    selector_accuracy: SelectorAccuracy | None = Field(default=None, description="With a selector.")
    first_choice: dict[Site, dict[Model, int]] | None = Field(
        default=None, description="Images for which the selector's first choice, before gamma, is that site's model."
    )
    selection_frequency: dict[Site, dict[Model, Score]] | None = Field(
        default=None,
        description="Share of the images that each model was used for; where the global one has a share beside a"
        " personal one, the personal one counts.",
    )
    foreign: dict[Site, Score] | None = Field(
        default=None, description="Share of the images that are farther than `delta`; null without it."
    )
    candidates: dict[Site, dict[Model, Score]] = Field(description="Every model on every site.")
    labels: dict[Label, LabelTables] | None = Field(
        default=None, description="The same tables of each label, where a task has several."
    )


class PolicyRow(Described):
    """One way to use the selector."""

    share: float = Field(description="The global model's share, the same for all sites.")
    flip: bool = Field(description="With mirror images.")
    majority: bool = Field(
        default=False, description="With one model for each volume; such rows are there where a site has volumes."
    )
    gamma: float | None = Field(description="The best threshold for it.")
    networks: int = Field(description="Runs of a network for one image.")
    gain: float = Field(description="Validation Dice above the first row, as the trimmed mean over sites.")


class BlendPoint(Described):
    """Soft selection at one gamma."""

    validation: Score = Field(description="Mean over all validation images.")
    test: Score = Field(description="Mean over all test images.")


class SweepRow(BlendPoint):
    """Algorithm 2 at one gamma."""

    gamma: float = Field(description="The threshold.")
    blend: BlendPoint | None = Field(default=None, description="Soft selection, with `--blend`.")


class UpdateConduct(Described):
    """A site's update beside those of the others."""

    norm: float = Field(description="Its norm, as it was sent.")
    cosine: Score = Field(
        description="Its cosine to the mean direction of the others' updates, from a sample of entries; null without"
        " others."
    )


class HistoryRow(Described):
    """One round."""

    round: int = Field(description="Its number.")
    answered: list[str] = Field(description="Sites whose updates were merged.")
    missing: dict[Site, str] = Field(
        description="Sites that did not, and why. One that is in neither list was not asked (`fraction`)."
    )
    asked: int | None = Field(default=None, description="With `fraction`: how many sites were asked.")
    loss: dict[Track, dict[Site, Score]] = Field(description="Mean training loss.")
    seconds: float = Field(description="Duration.")
    attempts: int = Field(description="How often it was tried; more than 1 with `round_retries`.")
    conduct: dict[Track, dict[Site, UpdateConduct]] | None = Field(
        default=None, description="The updates of each track; the parts of SCAFFOLD's stand apart (`global.control`)."
    )
    epsilon: dict[Site, float] | None = Field(
        default=None, description="Privacy loss of the run so far, of sites with `dp`."
    )
    update_epsilon: float | None = Field(
        default=None, description="The same for each site as a whole, with the job's `update_privacy`."
    )
    validation: dict[Track, dict[Site, Score]] | None = Field(
        default=None, description="Scores of the models that this round made, at each site."
    )
    score: dict[Track, Score] | None = Field(
        default=None,
        description="The same over all images; of personal models the mean over models. With `fraction` other sites in"
        " every round, so rounds are not compared by it: see [many sites](../explanation/many-sites.md#best-rounds).",
    )


class BestRound(Described):
    """The best round of a model."""

    round: int = Field(description="The round that made it; 0: the first weights.")
    score: Score = Field(description="Its validation score over all images.")
    file: str | None = Field(default=None, description="The weights' file in `checkpoints/`.")
    judged: dict[Site, list[float]] | None = Field(
        default=None, description="Score and number of images at each site that validated it."
    )


class Validation(Described):
    """Scores on the validation images."""

    history: list[HistoryRow] | list[float] = Field(
        description="One row per round. Of a centralized run: the Dice of each epoch, a number instead of a row."
    )
    best: dict[Model, BestRound] = Field(description="The round from which a model is taken.")
    super_model: Score = Field(description="Dice of what the selector makes of these models; null without a selector.")


class TrackFacts(Described):
    """What a track says of itself."""

    pull: dict[Site, dict[Site, Score]] | None = Field(
        default=None,
        description="With `pull: similarity`: the share of each other site in what pulls a site's personal model.",
    )


class ShareDice(Described):
    """A personal model with one share of the others."""

    share: float = Field(description="The share of the mean of the others.")
    dice: Score = Field(description="Mean Dice over the site's validation images.")


class PersonalShare(Described):
    """What a site chose with `personal_mix`."""

    share: float = Field(description="The best share on its validation images, the smallest of equals.")
    curve: list[ShareDice] = Field(description="Every share that was tried; empty: the site did not answer.")


class Note(Described):
    """An answer that was refused, or taken with a warning."""

    round: int = Field(description="The round.")
    task: str = Field(description="What the site was asked for.")
    site: str = Field(description="The site.")
    reason: str = Field(description="Why.")


class QuarantineNote(Described):
    """A site that went into quarantine."""

    round: int = Field(description="The round after which.")
    site: str = Field(description="The site.")
    until: int = Field(description="The last round in which it was not asked.")
    reason: str = Field(description="The last warning.")


class Privacy(Described):
    """What a site with `statistics_privacy` gave away."""

    epsilon: float = Field(description="Privacy loss of its last release of statistics.")
    delta: float = Field(description="The same.")
    sigma: float = Field(description="Standard deviation of the noise.")
    clip: float = Field(description="The largest norm of one image's scaled descriptor.")
    budget: float = Field(description="What all releases may add up to.")
    releases: int = Field(description="How many different sums it has sent so far; their losses add up.")


class TrainingPrivacy(Described):
    """What the training of a site with `dp` has cost, as the site reported it after its last round."""

    epsilon: float = Field(description="Privacy loss of this run so far, for each patient of the site.")
    delta: float = Field(description="The delta at which epsilon holds.")
    spent: float = Field(description="The same of all jobs that the site has taken part in.")
    budget: float = Field(description="Where `spent` ends: the site then trains no more.")
    noise_multiplier: float = Field(description="Standard deviation of a step's noise, divided by `max_grad_norm`.")
    max_grad_norm: float = Field(description="The largest norm of one image's gradient.")
    sample_rate: float = Field(description="Probability with which a patient is in a batch.")
    steps: int = Field(description="Noisy steps of this run so far.")


class UpdatePrivacyLoss(Described):
    """What a run with the job's `update_privacy` has cost each site."""

    epsilon: float = Field(description="Privacy loss for each site as a whole, after all rounds.")
    clip: float = Field(description="The largest norm of a site's update.")
    noise_multiplier: float = Field(description="Standard deviation of the noise, divided by what one site can move.")
    delta: float = Field(description="The delta at which epsilon holds.")
    rounds: int = Field(description="Rounds that added noise; with `fraction` the most that one site was in.")


class Wire(Described):
    """Bytes of tensors."""

    down_bytes: dict[Site, list[int]] = Field(description="To the site, in each round; 0: it took no part.")
    up_bytes: dict[Site, list[int]] = Field(description="From the site, in each round.")
    registration_up_bytes: dict[Site, int] = Field(description="From the site, before its first round.")
    delivery_down_bytes: dict[Site, int] = Field(description="The last models, to be validated.")
    delivery_up_bytes: dict[Site, int] = Field(description="Models that stayed at the site, handed over at the end.")
    mix_down_bytes: dict[Site, int] | None = Field(default=None, description="Two models, with `personal_mix`.")
    evaluation_down_bytes: dict[Site, int] = Field(description="All models, to be tested.")


class Seconds(Described):
    """Durations."""

    round: list[float] = Field(description="Of each round.")
    total: float = Field(description="Of the job; of a resumed run, of its last part.")


class Memory(Described):
    """The server's memory, in MB."""

    server: float = Field(description="Its peak.")
    server_start: float = Field(description="Before the first round.")


class ResultsFile(Described):
    """results.json. A centralized run has neither `run_id` nor what is about a federation."""

    task: str = Field(description="The task.")
    method: str = Field(description="The method.")
    preset: str = Field(description="The preset that the settings started from; `none` without one.")
    selector: str = Field(description="The kind of selector; `none` without one.")
    lam: float | None = Field(description="SoftPull's own share; null for a method without it.")
    gamma: float | None = Field(
        description="How sure the selector must be: the best on the validation images, together with `flip`, at"
        " each site's `share`, by the trimmed mean over sites, the largest of equals; null without a threshold."
    )
    delta: list[float | None] | float | None = Field(
        description="The distance beyond which an image is foreign and goes to the global model, for each nearest site"
        " in index order: 1.25 times the smallest that costs this site at most `delta_cost` on its validation images;"
        " null: no limit."
    )
    share: list[float] | float = Field(
        description="The global model's share beside each site's personal one, in index order: the best on this site's"
        " validation images; 0 if none is worth a second network."
    )
    flip: bool = Field(description="Whether mirror images are predicted as well.")
    majority: bool = Field(
        default=False,
        description="Whether all slices of a volume get one model, the one that most of them select: if that was better"
        " on the validation images by the trimmed mean over sites.",
    )
    hard_gamma: float | None = Field(description="The best gamma of Algorithm 2 alone.")
    blend_gamma: float | None = Field(description="The same for soft selection, with `--blend`.")
    rounds: int = Field(description="Rounds in all.")
    seed: int = Field(description="The seed.")
    sites: list[str] = Field(description="The sites in index order.")
    run_id: str | None = Field(default=None, description="Names the run; a resumed run keeps it.")
    images: dict[Site, dict[Part, int]] = Field(description="Images of `train`, `validation` and `test`.")
    settings: dict[str, Any] = Field(description="The job's [settings](settings.md).")
    test: DiceTables = Field(description="Dice on the test images. Rows that the method does not have are absent.")
    policies: list[PolicyRow] = Field(description="What was tried on the validation images, each at its best gamma.")
    gamma_sweep: list[SweepRow] = Field(description="Dice of Algorithm 2 at every gamma; empty without one.")
    validation: Validation = Field(description="Scores on the validation images.")
    tracks: dict[Track, TrackFacts] | None = Field(default=None, description="More about single tracks.")
    personal_mix: dict[Site, PersonalShare] | None = Field(
        default=None, description="With `personal_mix`: the others' share in each site's personal model."
    )
    refused: list[Note] | None = Field(default=None, description="Answers that were not taken, at most 50 per site.")
    warned: list[Note] | None = Field(default=None, description="Answers that were taken with a warning, as many.")
    uncounted: dict[Site, int] | None = Field(default=None, description="How many more of both there were.")
    quarantined: list[QuarantineNote] | None = Field(
        default=None, description="Sites that went into [quarantine](../explanation/robust.md#quarantine)."
    )
    missing_in_evaluation: dict[Site, str] | None = Field(
        default=None, description="Sites that did not test the models, and why."
    )
    privacy: dict[Site, Privacy] | None = Field(
        default=None,
        description="Sites with [`statistics_privacy`](../explanation/privacy.md#private-statistics).",
    )
    dp: dict[Site, TrainingPrivacy] | None = Field(
        default=None,
        description="Sites with [`dp`](../explanation/differential-privacy.md): what their training has cost.",
    )
    update_privacy: UpdatePrivacyLoss | None = Field(
        default=None,
        description="With the job's"
        " [`update_privacy`](../explanation/differential-privacy.md#privacy-of-a-whole-site).",
    )
    wire: Wire | None = Field(default=None, description="Bytes of tensors.")
    seconds: Seconds | None = Field(default=None, description="Durations.")
    peak_rss_mb: Memory | None = Field(default=None, description="The server's memory, in MB.")
