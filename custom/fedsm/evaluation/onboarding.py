"""The Dice of a super model, and of every model in it, on the labelled images of a site that took no part."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from fedsm.core.tensors import Tensors
from fedsm.data.cases import Case
from fedsm.evaluation.bootstrap import resample, site_interval
from fedsm.evaluation.candidates import Candidates
from fedsm.evaluation.image_scores import SUPER, ImageScores, score_images
from fedsm.evaluation.metrics import DICE
from fedsm.evaluation.paired import Differences, compare
from fedsm.nets import build_unet
from fedsm.selectors.policy import read_policy
from fedsm.super_model.artefact import SuperModelFiles

START = "start"  # the name of the model that a new site may start from


def score_labelled(
    files: SuperModelFiles, start: Tensors | None, cases: Iterable[Case], device: torch.device,
    done: Callable[[], object],
) -> ImageScores:  # fmt: skip
    """Scores the images that have masks.

    Args:
        files: the super model.
        start: weights of the model that the site may start from, which is scored as well.
        cases: the images.
        device: where to compute.
        done: called after each file.
    """
    settings = files.settings
    models = Candidates(settings, files.manifest["sites"], files.networks, device)
    if start is not None:
        models.nets[START] = build_unet(settings.task)
        models.nets[START].load_state_dict(start)
        models.nets[START].to(device).eval()
    policy = read_policy(files.manifest, "the super model's manifest")
    return score_images(models, cases, policy, settings.batch_size, device, done, (DICE,))


def dice_of_models(scores: ImageScores, site: str, chosen: str | None) -> dict[str, dict]:
    """Model -> its Dice, the best first, and how much better it is than the one that was chosen.

    Args:
        scores: of the labelled images.
        site: the site's name.
        chosen: the model that the site should use; None: there is none.

    Returns:
        `mean`, `low` and `high`, and under `minus_chosen` the paired difference with `p`, None for the model itself.
    """
    dice = {name: metrics[DICE].double().mean(1).numpy() for name, metrics in scores.scores.items()}
    rows = {}
    for name in sorted(dice, key=lambda name: (-dice[name].mean(), name != SUPER)):
        interval = site_interval(resample(dice[name], scores.patients, 0, site))
        difference = None
        if chosen in dice and name != chosen:
            values = Differences(dice[name] - dice[chosen], scores.patients)
            difference = compare({site: values})["per_site"][site]
        rows[name] = {key: interval[key] for key in ("mean", "low", "high")} | {
            "minus_chosen": difference and {key: difference[key] for key in ("mean", "low", "high", "p")}
        }
    return rows
