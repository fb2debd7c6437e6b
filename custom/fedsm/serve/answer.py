"""What the service says about an upload, as JSON."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import Field

import fedsm
from fedsm.core.described import Described, Score
from fedsm.core.task_settings import TaskSettings
from fedsm.data.contact_sheet import COLOURS
from fedsm.data.labels import decompose
from fedsm.selectors.inference import GLOBAL
from fedsm.serve.choices import choices_of, names_of_yhat, percent, why
from fedsm.serve.limits import ServeLimits
from fedsm.serve.upload import Upload
from fedsm.super_model.model import SELECTOR, SuperModel
from fedsm.super_model.prediction import BatchPrediction, Prediction
from fedsm.super_model.table import measures

NOTICE = "Not for clinical use. A person who can read such images must look at every mask."


class SliceAnswer(Described):
    """An image, or one slice of a volume."""

    model: str = Field(description="The network that segmented it; shares, where several did.")
    why: str = Field(description="Why that one, in words.")
    yhat: dict[str, float] | None = Field(
        description="The selector's probability of each site; null without a selector."
    )
    confidence: Score = Field(description="The highest of them.")
    distance: Score = Field(description="Distance to the nearest site's images; 1 is usual there.")
    foreign: bool | None = Field(description="Whether that is more than the site's limit; null: nobody can tell.")
    measures: dict[str, float | None] = Field(description="The columns of `predictions.csv` that measure labels.")


class Answer(Described):
    """A prediction."""

    id: str = Field(description="Its name in `/api/results/ID/...`; it cannot be guessed.")
    kind: str = Field(description="`picture` or `volume`.")
    width: int = Field(description="Pixels of the image.")
    height: int = Field(description="Pixels of the image.")
    choice: str = Field(description="What was asked for: `selector`, or a network.")
    model: str = Field(description="The network that segmented most slices.")
    summary: str = Field(description="Which networks, and why, in a sentence.")
    used: dict[str, int] = Field(description="Network -> slices that it segmented.")
    slices: list[SliceAnswer] = Field(description="The slices, from the feet to the head; of a picture one.")
    files: list[str] = Field(description="What can be fetched below `/api/results/ID/`.")
    seconds: float = Field(description="From the last byte of the upload to this answer.")
    notice: str = Field(default=NOTICE, description="What must not be forgotten.")


class LabelInfo(Described):
    """A label of the task."""

    name: str = Field(description="Its name.")
    values: list[int] = Field(description="The mask values that belong to it.")
    colour: str = Field(description="Its colour on the page, `#rrggbb`.")


class ModelInfo(Described):
    """The super model that is served."""

    task: str = Field(description="Name of the task.")
    method: str = Field(description="How it was trained.")
    version: str = Field(description="Version of this software.")
    run_id: str | None = Field(description="The run that made it.")
    sites: list[str] = Field(description="The sites that trained it.")
    choices: list[str] = Field(description="What `model` of a prediction may be; the first is the default.")
    labels: dict[str, LabelInfo] = Field(description="The task's labels.")
    most_bytes: int = Field(description="The largest upload that is taken.")
    minutes: int = Field(description="How long a result is there at most.")
    keeps: bool = Field(description="Whether the service writes uploads and masks to its disk.")
    notice: str = Field(default=NOTICE, description="What must not be forgotten.")


def model_info(model: SuperModel, limits: ServeLimits, keeps: bool) -> ModelInfo:
    """What is served."""
    task = model.settings.task
    return ModelInfo(
        task=task.name,
        method=model.settings.method,
        version=fedsm.__version__,
        run_id=model.manifest.get("run_id"),
        sites=model.sites,
        choices=list(choices_of(model)),
        labels={
            name: LabelInfo(name=name, values=list(values), colour="#{:02x}{:02x}{:02x}".format(*colour(i)))
            for i, (name, values) in enumerate(task.labels.items())
        },
        most_bytes=limits.upload,
        minutes=round(limits.results_seconds / 60),
        keeps=keeps,
    )


def colour(label: int) -> tuple[int, int, int]:
    """The colour of a label by its number."""
    return COLOURS[label % len(COLOURS)]


def describe_slices(
    model: SuperModel, upload: Upload, choice: str, batch: BatchPrediction, predictions: list[Prediction]
) -> list[SliceAnswer]:
    """What is known about each slice."""
    names, yhat = names_of_yhat(model), batch.selection.yhat
    return [
        SliceAnswer(
            model=p.model,
            why=why(model, choice, batch, row),
            yhat=None if yhat is None else dict(zip(names, yhat[row].tolist(), strict=True)),
            confidence=p.confidence,
            distance=p.distance,
            foreign=p.foreign,
            measures=_measures(p.mask, model.settings.task, upload.area),
        )
        for row, p in enumerate(predictions)
    ]


def _measures(mask: np.ndarray, task: TaskSettings, area: float | None) -> dict[str, float | None]:
    return measures(decompose(mask, task), area, task)


def used_networks(slices: list[SliceAnswer]) -> dict[str, int]:
    """Network -> slices, the most used one first; shares of several count as the heaviest."""
    heaviest = [s.model.split(" + ")[0].rpartition(" ")[2] for s in slices]
    return dict(Counter(heaviest).most_common())


def summarize(choice: str, slices: list[SliceAnswer]) -> str:
    """A sentence about the whole image."""
    if len(slices) == 1 or choice != SELECTOR:
        return slices[0].why
    used = used_networks(slices)
    foreign = sum(bool(s.foreign) for s in slices)
    told = f" {foreign} of them are foreign: unlike the images of all sites." if foreign else ""
    if len(used) == 1:
        return f"All {len(slices)} slices: {_network(next(iter(used)))}.{told}"
    parts = [f"{_network(name)} for {percent(count / len(slices))}" for name, count in used.items()]
    return f"Each of the {len(slices)} slices has its own network: {', '.join(parts)}.{told}"


def _network(name: str) -> str:
    return "the global network" if name == GLOBAL else f"the network of {name.removeprefix('personal.')}"
