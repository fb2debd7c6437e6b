"""The scores of every candidate on every image of a site, the basis of `fedsm evaluate` and of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from fedsm.data.cases import Case
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.metrics import METRICS, metrics_per_image
from fedsm.evaluation.volume_scores import VolumeMasks, VolumeScores
from fedsm.selectors.inference import MIXTURE, THRESHOLD, mix
from fedsm.selectors.policy import Policy
from fedsm.selectors.selection import Selection, choose, weights_of

SUPER = "super_model"


@dataclass
class ImageScores:
    """The N images (slices) of a site, in the order of the files.

    Attributes:
        patients: the patient of each image.
        order: the models as a selector numbers them.
        rule: how the selector's output is used; None without a selector.
        scores: model name -> metric -> (N, L).
        yhat: (N, K), or (N, K + 1) for a selector of all models; None without one.
        foreign: (N,) whether the policy takes an image for a foreign one; None where nobody can tell.
        unit: of the distances.
        names: file and slice of each image; never leaves the site.
        volumes: the scores of whole volumes; None where no image is a volume, or they were not asked for.
        choices: (N,) the number in `order` of the model that the policy selects; None without a selector.
    """

    patients: list[str]
    order: list[str]
    rule: str | None
    scores: dict[str, dict[str, torch.Tensor]]
    yhat: torch.Tensor | None
    foreign: torch.Tensor | None
    unit: str
    names: list[str] = field(default_factory=list)
    volumes: VolumeScores | None = None
    choices: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.patients)

    def first_choice(self) -> torch.Tensor:
        """(N,) the index in `order` of the most probable model."""
        assert self.yhat is not None
        return self.yhat.argmax(1) + (1 if self.rule == THRESHOLD else 0)

    def chosen(self, gamma: float | None) -> torch.Tensor:
        """(N,) the number in `order` of the model that Algorithm 2 takes at a gamma, slice by slice; foreign images go
        to the global one."""
        assert self.yhat is not None and self.rule is not None
        return choose(self.yhat, self.rule, gamma, self.foreign)

    def at_gamma(self, gamma: float | None) -> dict[str, torch.Tensor]:
        """Metric -> (N, L) of one model per image at a threshold; a mixture has its own, whatever the threshold."""
        if self.rule == MIXTURE:
            return self.scores[SUPER]
        chosen, rows = self.chosen(gamma), torch.arange(len(self))
        metrics = self.scores[self.order[0]]
        return {m: torch.stack([self.scores[name][m] for name in self.order])[chosen, rows] for m in metrics}


def super_model(
    models: Candidates, found: dict[str, torch.Tensor], selection: Selection, policy: Policy
) -> torch.Tensor:
    """The super model's probabilities (B, L, H, W) from its networks' (`found`) and what was selected."""
    weights = weights_of(selection, len(models.order), models.rule, policy)
    return mix(weights, torch.stack([found[name] for name in models.order]))


@torch.no_grad()
def score_images(
    models: Candidates, cases: Iterable[Case], policy: Policy, batch_size: int, device: torch.device,
    done: Callable[[], object], metrics: Sequence[str] = METRICS, tolerance: float | None = None,
) -> ImageScores:  # fmt: skip
    """Walks the files of a site once.

    Args:
        models: the networks.
        cases: the files.
        policy: how the super model uses its selector. Mirror images, if it has them, are for every model.
        batch_size: slices at once.
        device: where to compute.
        done: called after each file.
        metrics: which are computed of slices.
        tolerance: of the surfaces of volumes, in millimetres; None: volumes are not scored as such.
    """
    names = [*models.nets, *([SUPER] if models.selector else [])]
    scores: dict[str, dict[str, list]] = {name: {m: [] for m in metrics} for name in names}
    patients: list[str] = []
    files: list[str] = []
    selections: list[Selection] = []
    units = set()
    volumes = None if tolerance is None else VolumeScores(tolerance)
    for case in cases:
        whole = VolumeMasks(case.volume.truth.shape) if volumes is not None and case.volume else None
        if models.selector:
            parts = (images.to(device) for images in case.images.split(batch_size))
            selections.append(models.select(parts, policy, [len(case.images)]))
        for start in range(0, len(case.images), batch_size):
            rows = slice(start, start + batch_size)
            truth = case.labels[rows] > 0
            found = models.predict(case.images[rows].to(device), policy)
            if models.selector:
                found = found | {SUPER: super_model(models, found, selections[-1].rows(rows), policy)}
            for name, probabilities in found.items():
                for metric, values in metrics_per_image(probabilities > 0.5, truth, case.spacing, metrics).items():
                    scores[name][metric].append(values)
                if whole:
                    whole.add(name, probabilities)
        if volumes is not None and case.volume and whole:
            volumes.add(case.patient, case.volume, whole)
        patients += [case.patient] * len(case.images)
        files += [f"{case.stem}/{i}" for i in range(len(case.images))]
        units.add(case.unit)
        done()
    joined = {name: {m: torch.cat(parts) for m, parts in by.items()} for name, by in scores.items()}
    unit = units.pop() if len(units) == 1 else "px or mm"
    choices, yhat, _, foreign = Selection.cat(selections) if selections else (None,) * 4
    return ImageScores(
        patients, models.order, models.rule, joined, yhat, foreign, unit, files, volumes or None, choices
    )  # fmt: skip
