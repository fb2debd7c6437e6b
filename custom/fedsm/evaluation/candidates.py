"""What a site says of the candidates: means and counts over its own images, nothing about a single one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from fedsm.evaluation.dice import dice_per_image
from fedsm.nets import build_unet
from fedsm.settings import JobSettings
from fedsm.super_model.inference import GLOBAL, personal, select
from fedsm.tracks import build_inference_selector
from fedsm.tracks.base import Batch, Tensors


@torch.no_grad()
def evaluate_candidates(
    settings: JobSettings,
    sites: list[str],
    candidates: dict[str, Tensors],
    batches: Callable[[], Iterable[Batch]],
    device: torch.device,
) -> dict:
    """Scores every candidate, and Algorithm 2 over the grid of gammas, on one part of a site.

    Args:
        settings: the job's settings.
        sites: names of all sites, in index order.
        candidates: model name (`global`, `personal.<site>`, `selector`) -> tensors.
        batches: walks the images anew at each call.
        device: where to compute.

    Returns:
        images: how many;
        dice: model name -> label -> mean Dice;
        gammas: a row a gamma, with `gamma`, `dice` (label -> mean) and `selected` (model name -> images), in the
        order of settings.gammas; empty where there is no selector or a candidate is missing;
        argmax: site -> images for which the selector's first choice was that site.
    """
    labels = list(settings.task.labels)
    names = [n for n in candidates if n != "selector"]
    net = build_unet(settings.task).to(device).eval()
    dice = {}  # model -> (N, L)
    for name in names:
        net.load_state_dict(candidates[name])
        dice[name] = torch.cat([dice_per_image(net(x) > 0, y > 0) for x, y in batches()])
    images = len(next(iter(dice.values())))
    result = {
        "images": images,
        "dice": {name: dict(zip(labels, d.mean(0).tolist(), strict=True)) for name, d in dice.items()},
        "gammas": [],
        "argmax": {},
    }
    order = [GLOBAL, *map(personal, sites)]
    if "selector" not in candidates or set(order) - set(dice):
        return result

    selector = build_inference_selector(settings, len(sites), candidates["selector"], device)
    probabilities = torch.cat([selector.probabilities(x) for x, _ in batches()])
    first = probabilities.argmax(1)
    result["argmax"] = {site: int((first == k).sum()) for k, site in enumerate(sites)}
    stacked = torch.stack([dice[name] for name in order])  # (1 + K, N, L)
    for gamma in settings.gammas:
        chosen = select(probabilities, gamma)
        scores = stacked[chosen, torch.arange(images)]
        result["gammas"].append(
            {
                "gamma": gamma,
                "dice": dict(zip(labels, scores.mean(0).tolist(), strict=True)),
                "selected": {name: int((chosen == m).sum()) for m, name in enumerate(order)},
            }
        )
    return result
