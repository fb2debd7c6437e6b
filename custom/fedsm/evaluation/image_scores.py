"""The scores of every candidate on every image of a site, the basis of `fedsm evaluate` and of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from fedsm.data.cases import Case
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.metrics import METRICS, metrics_per_image
from fedsm.selectors.inference import MIXTURE, THRESHOLD, mix
from fedsm.selectors.selection import choose

SUPER = "super_model"


@dataclass
class ImageScores:
    """The N images (slices) of a site, in the order of the files.

    Attributes:
        patients: the patient of each image.
        order: the models as a selector numbers them.
        rule: how the selector's output is used; None without a selector.
        scores: model name -> metric -> (N, L).
        yhat: (N, K), or (N, K + 1) for a selector of all models; None without a selector.
        unit: unit of the distances.
        names: file and slice of each image; never leaves the site.
    """

    patients: list[str]
    order: list[str]
    rule: str | None
    scores: dict[str, dict[str, torch.Tensor]]
    yhat: torch.Tensor | None
    unit: str
    names: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.patients)

    def first_choice(self) -> torch.Tensor:
        """(N,) the index in `order` of the most probable model."""
        assert self.yhat is not None
        return self.yhat.argmax(1) + (1 if self.rule == THRESHOLD else 0)

    def chosen(self, gamma: float | None) -> torch.Tensor:
        """(N,) the index in `order` of the model that Algorithm 2 chooses."""
        assert self.yhat is not None and self.rule is not None
        return choose(self.yhat, self.rule, gamma)

    def of_super_model(self, gamma: float | None) -> dict[str, torch.Tensor]:
        """Metric -> (N, L) of Algorithm 2 at a threshold; a mixture has scores of its own and no threshold."""
        if self.rule == MIXTURE:
            return self.scores[SUPER]
        chosen, rows = self.chosen(gamma), torch.arange(len(self))
        metrics = self.scores[self.order[0]]
        return {m: torch.stack([self.scores[name][m] for name in self.order])[chosen, rows] for m in metrics}


@torch.no_grad()
def score_images(
    models: Candidates, cases: Iterable[Case], batch_size: int, device: torch.device, done: Callable[[], object],
    metrics: Sequence[str] = METRICS,
) -> ImageScores:  # fmt: skip
    """Walks the files of a site once.

    Args:
        models: the networks.
        cases: the files.
        batch_size: slices at once.
        device: where to compute.
        done: called after each file.
        metrics: which are computed.
    """
    names = [*models.nets, *([SUPER] if models.rule == MIXTURE else [])]
    scores: dict[str, dict[str, list]] = {name: {m: [] for m in metrics} for name in names}
    patients, files, yhat, units = [], [], [], set()
    for case in cases:
        for images, labels in zip(case.images.split(batch_size), case.labels.split(batch_size), strict=True):
            images, truth = images.to(device), labels > 0
            logits = models.logits(images)
            masks = {name: values > 0 for name, values in logits.items()}
            if models.selector:
                yhat.append(models.selector.probabilities(images))
            if models.rule == MIXTURE:
                masks[SUPER] = mix(yhat[-1], torch.stack([logits[n] for n in models.order])) > 0.5
            for name, mask in masks.items():
                for metric, values in metrics_per_image(mask, truth, case.spacing, metrics).items():
                    scores[name][metric].append(values)
        patients += [case.patient] * len(case.images)
        files += [f"{case.stem}/{i}" for i in range(len(case.images))]
        units.add(case.unit)
        done()
    joined = {name: {m: torch.cat(parts) for m, parts in by.items()} for name, by in scores.items()}
    unit = units.pop() if len(units) == 1 else "px or mm"
    return ImageScores(patients, models.order, models.rule, joined, torch.cat(yhat) if yhat else None, unit, files)
