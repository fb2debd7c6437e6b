"""Membership inference: can somebody who has a model tell which images it was trained on?

Each attack gives an image x a score that is high where the image looks like one of the model's own. With l_t(x) the
loss of the model t that is attacked, and r = 1..R the reference models, which x did not train:

    loss         s(x) = -l_t(x)                                        (Yeom et al., CSF 2018)
    calibrated   s(x) = phi_t(x) - 1/R sum_r phi_r(x)                  (Watson et al., ICLR 2022)
                 phi(x) = log(p / (1 - p)),  p = exp(-l(x))

phi is the scaling of LiRA (Carlini et al., S&P 2022), after which the losses of many models are about normal. LiRA's
offline test asks how unlikely phi_t(x) is among models that did not see x: a normal distribution with the mean of the
references. Their number, one less than the sites, is too small to estimate a spread for each image. With one spread for
all images the order of the scores, and so the AUC, is that of the formula above.

Reference models are the personal models of the other sites. Where they are pulled towards each other (SoftPull), they
have a share in what x taught, so this attack is then weaker than one with models that are strangers to x.

    AUC = P(s(member) > s(other)) + P(s(member) = s(other)) / 2

over all pairs of a training image (member) and a test image (other) of the site: 0.5 is guessing. The interval is a
bootstrap in which the patients of both are drawn with replacement, each with all images (`bootstrap.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from fedsm.core.settings import JobSettings
from fedsm.data.cases import Case
from fedsm.evaluation.bootstrap import LEVEL, draw_patients
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.site_report import LEAST_PATIENTS, OWN
from fedsm.selectors.inference import GLOBAL, personal
from fedsm.tracks.learner import SegmentationLoss

LOSS, CALIBRATED = "loss", "calibrated"
SITES_FILE = "audit_sites.json"  # of a federated audit, at the server: site -> its report
_TINY = 1e-9  # keeps phi finite where a loss is 0


@dataclass
class Losses:
    """The losses of N images of one part of a site.

    Attributes:
        patients: the patient of each.
        by_model: model name -> (N,).
    """

    patients: list[str] = field(default_factory=list)
    by_model: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.patients)


@torch.no_grad()
def losses_of(
    models: Candidates, settings: JobSettings, cases: Iterable[Case], device: torch.device, done: Callable[[], object]
) -> Losses:
    """Every model's loss, the job's own, on every image (slice); `done` is called after each file."""
    loss = SegmentationLoss(settings.loss, logits=False)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in models.nets}
    patients: list[str] = []
    for case in cases:
        batches = zip(case.images.split(settings.batch_size), case.labels.split(settings.batch_size), strict=True)
        for images, labels in batches:
            truth = labels.to(device).float()
            for name, output in models.probabilities(images.to(device)).items():
                found[name].append(loss.per_image(output, truth).double().cpu())
        patients += [case.patient] * len(case.images)
        done()
    return Losses(patients, {name: torch.cat(parts).numpy() for name, parts in found.items()})


def confidence(losses: np.ndarray) -> np.ndarray:
    """phi: log(p / (1 - p)) with p = exp(-l), which is -log(exp(l) - 1)."""
    return -np.log(np.expm1(np.maximum(losses, _TINY)))


def scores(losses: Losses, target: str, references: list[str]) -> dict[str, np.ndarray]:
    """Attack -> (N,) scores; the calibrated one only where there are reference models."""
    found = {LOSS: -losses.by_model[target]}
    if references:
        usual = np.mean([confidence(losses.by_model[name]) for name in references], 0)
        found[CALIBRATED] = confidence(losses.by_model[target]) - usual
    return found


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """The share of pairs in which the member has the higher score; equal scores count half."""
    return float(_wins(members, others).mean())


def auc_interval(
    members: np.ndarray, others: np.ndarray, patients: tuple[list[str], list[str]], seed: int, site: str,
    bounds: bool = True,
) -> dict:  # fmt: skip
    """`auc`, and `low` and `high` of its interval.

    Args:
        members: scores of the training images.
        others: scores of the test images.
        patients: the patient of each member, and of each other.
        seed: of the bootstrap.
        site: the site's name, part of the seed.
        bounds: whether bounds may be told; they are None, too, where one part has a single patient.
    """
    (rows, drawn_rows), (columns, drawn_columns) = (
        draw_patients(p, seed, site, part) for p, part in zip(patients, ("members", "others"), strict=True)
    )
    shape = (drawn_rows.shape[1], drawn_columns.shape[1])
    if not bounds or min(shape) < 2:
        return {"auc": auc(members, others), "low": None, "high": None}
    wins = np.zeros(shape)  # sums over the pairs of images of two patients
    np.add.at(wins, (rows[:, None], columns[None]), _wins(members, others))
    sizes = np.bincount(rows, minlength=shape[0]), np.bincount(columns, minlength=shape[1])
    times = [_times(drawn, count) for drawn, count in zip((drawn_rows, drawn_columns), shape, strict=True)]
    draws = ((times[0] @ wins) * times[1]).sum(1) / ((times[0] @ sizes[0]) * (times[1] @ sizes[1]))
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"auc": auc(members, others), "low": float(low), "high": float(high)}


def _wins(members: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(M, N): 1 where the member's score is higher, 1/2 where both are equal."""
    difference = np.subtract.outer(members, others)
    return (difference > 0) + (difference == 0) / 2


def _times(drawn: np.ndarray, count: int) -> np.ndarray:
    """(DRAWS, P) how often each patient was drawn."""
    return np.stack([(drawn == i).sum(1) for i in range(count)], 1).astype(np.float64)


def attacked_models(networks: Iterable[str], site: str) -> dict[str, str]:
    """What is attacked at a site: the row's name -> the network's."""
    names = list(networks)
    return {row: name for row, name in ((OWN, personal(site)), (GLOBAL, GLOBAL)) if name in names}


def references_of(networks: Iterable[str], site: str) -> list[str]:
    """The reference models at a site: the personal models of the others."""
    return sorted(name for name in networks if name.startswith(personal("")) and name != personal(site))


def audit_of(site: str, members: Losses, others: Losses, seed: int, private: bool = False) -> dict:
    """A site's report: figures over its images, nothing about a single one.

    Args:
        site: the site.
        members: losses of its training images.
        others: losses of its test images.
        seed: of the bootstrap.
        private: the report leaves the site: no bounds where one part has fewer than `LEAST_PATIENTS` patients, because
            they would be the values of single patients.

    Returns:
        plain values: `members` and `others`: `images` and `patients`; `references`: how many models; `models`: row ->
        `member_loss` and `other_loss`, the means, and attack -> interval, None for one without reference models.
    """
    counts = [len(set(part.patients)) for part in (members, others)]
    bounds = not private or min(counts) >= LEAST_PATIENTS
    references = references_of(members.by_model, site)
    models = {}
    for row, name in attacked_models(members.by_model, site).items():
        mine, theirs = (scores(part, name, references) for part in (members, others))
        found = {
            attack: auc_interval(mine[attack], theirs[attack], (members.patients, others.patients), seed, site, bounds)
            for attack in mine
        }
        means = {
            key: float(part.by_model[name].mean())
            for key, part in zip(("member_loss", "other_loss"), (members, others), strict=True)
        }
        models[row] = means | {LOSS: found[LOSS], CALIBRATED: found.get(CALIBRATED)}
    sizes = [{"images": len(part.patients), "patients": n} for part, n in zip((members, others), counts, strict=True)]
    return {"members": sizes[0], "others": sizes[1], "references": len(references), "models": models}
