"""What evaluation.json holds."""

from __future__ import annotations

from pydantic import Field

from fedsm.core.described import Described, Label, Metric, Model, Score, Site


class Interval(Described):
    """A mean and its bootstrap interval."""

    mean: Score = Field(description="The mean.")
    low: Score = Field(description="Lower bound; null for a single patient, or where a site keeps its bounds.")
    high: Score = Field(description="Upper bound.")


class SiteInterval(Interval):
    """The same of one site."""

    error: Score = Field(description="Standard error of the mean.")


class Averages(Described):
    """The two means over sites."""

    client_avg: Interval = Field(description="Mean over the sites' means.")
    global_: Interval = Field(alias="global", description="Mean over all images of all sites.")


class SiteDifference(SiteInterval):
    """The difference of two models at one site."""

    p: Score = Field(description="Wilcoxon's signed-rank test on the patients' mean differences, two-sided; a site that"
                     " evaluated at home sends none.")  # fmt: skip
    images: int = Field(description="How many.")
    patients: int = Field(description="How many.")


class PairedComparison(Averages):
    """Two models on the same images: the difference in Dice (mean over labels), first minus second."""

    first: Model = Field(description="`super_model`, or `personal_own`: each site's own model.")
    second: Model = Field(description="`personal_own` or `global`.")
    per_site: dict[Site, SiteDifference] = Field(description="At each site that has both.")
    p: Score = Field(description="Wilcoxon's test on all patients of all sites; null in a federation.")
    images: int = Field(description="Of all sites.")
    patients: int = Field(description="Of all sites.")


class SuperModelNote(Described):
    """What was evaluated."""

    task: str = Field(description="The task.")
    method: str = Field(description="The method.")
    selector: str = Field(description="The kind of selector.")
    gamma: float | None = Field(description="The threshold of Algorithm 2.")
    sites: list[str] = Field(description="The sites that trained it.")
    run_id: str | None = Field(description="The run that made it.")


class Bootstrap(Described):
    """How the intervals were made."""

    draws: int = Field(description="Samples.")
    level: float = Field(description="0.95: 95 % intervals.")
    by: str = Field(description="What is drawn: patients.")
    seed: int = Field(description="Of the draws.")
    averages: str = Field(
        description="Intervals over sites: `draws`, or `errors` where only standard errors are known."
    )


class GammaRow(Described):
    """Algorithm 2 at one gamma."""

    gamma: float | None = Field(description="The threshold.")
    per_site: dict[Site, Score] = Field(description="Mean Dice of each site.")
    client_avg: Score = Field(description="Mean over sites.")
    global_: Score = Field(alias="global", description="Mean over all images.")
    selected: dict[Model, int] = Field(description="Images that each model was used for.")


class ReliabilityBin(Described):
    """Images of like confidence."""

    low: float = Field(description="Confidence above this.")
    high: float = Field(description="Up to this.")
    images: int = Field(description="How many.")
    confidence: Score = Field(default=None, description="Their mean confidence; absent or null in an empty bin.")
    accuracy: Score = Field(default=None, description="How many of them the selector was right about; the same.")


class Reliability(Described):
    """Whether the selector knows when it is right."""

    bins: list[ReliabilityBin] = Field(description="One row per bin.")
    ece: Score = Field(description="Expected calibration error.")
    accuracy: Score = Field(description="Over all images.")
    confidence: Score = Field(description="Mean over all images.")


class VolumesSection(Described):
    """Whole volumes on the grids of their files, of the sites that have some."""

    tolerance: float = Field(description="Of NSD, in millimetres: the task's `surface_tolerance`.")
    volumes: dict[Site, int] = Field(description="Volumes of each site.")
    patients: dict[Site, int] = Field(description="Patients of each site.")
    models: dict[Model, dict[Site, dict[Metric, dict[Label, SiteInterval]]]] = Field(
        description="As above, with the metrics `dice`, `nsd` and `hd95` (mm)."
    )
    averages: dict[Model, dict[Metric, dict[Label, Averages]]] = Field(description="The same over sites.")


class EvaluationFile(Described):
    """A super model on the images of sites."""

    super_model: SuperModelNote = Field(description="What was evaluated.")
    part: str = Field(description="The part of the images: `test`, `validation` or `all`.")
    labels: list[str] = Field(description="The labels; the tables have `mean` beside them.")
    images: dict[Site, int] = Field(description="Images of each site.")
    patients: dict[Site, int] = Field(description="Patients of each site.")
    unit: dict[Site, str] = Field(description="Of distances: `px` or `mm`.")
    bootstrap: Bootstrap = Field(description="How the intervals were made.")
    models: dict[Model, dict[Site, dict[Metric, dict[Label, SiteInterval]]]] = Field(
        description="Scores of the super model, of each site's own model and of every model on every site."
    )
    averages: dict[Model, dict[Metric, dict[Label, Averages]]] = Field(description="The same over sites.")
    paired: list[PairedComparison] = Field(description="The models compared on the same images.")
    gammas: list[GammaRow] = Field(description="One row per gamma; empty for a selector without a threshold.")
    selected: dict[Site, dict[Model, int]] = Field(description="Images of a site that each model was used for.")
    confusion: dict[Site, dict[Model, int]] = Field(description="The selector's first choice, before gamma.")
    reliability: Reliability | None = Field(description="Null without a selector.")
    volumes: VolumesSection | None = Field(
        default=None, description="Scores of whole volumes; null where all images are pictures."
    )
    missing: dict[Site, str] = Field(default={}, description="Sites without scores, and why; in a federation.")
