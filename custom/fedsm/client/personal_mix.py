"""A site's part of `personal_mix`: the validation Dice of its personal model at each share of the others' mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fedsm.client.work import Aborted
from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_SITES, is_whole
from fedsm.core.personal_mix import MEAN, OWN, mixed, shares_of
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.learner import dice_report


def try_shares(
    settings: JobSettings,
    payload: dict[str, Tensors],
    count: Any,
    batches: Callable[[], Iterable[Batch]],
    device: torch.device,
    aborted: Callable[[], bool],
) -> list[float]:
    """Mean validation Dice at each share, in the order of `shares_of`: a number each.

    Args:
        settings: the job's settings; they say which shares, and how many of them is limited.
        payload: the site's own model and the mean of all, as the server sent them.
        count: how many models the mean is of, as the server says.
        batches: walks the validation images anew at each call.
        device: where to compute.
        aborted: whether the job was stopped; called before each share.

    Raises:
        Aborted: `aborted()` became true.
        UserError: the server asks for something else than what the settings say.
    """
    shares = shares_of(settings)
    if not shares or set(payload) != {OWN, MEAN} or not is_whole(count, 2, MOST_SITES):
        raise UserError("the server's task: no shares to try, or no two models", public="refused: nothing to mix")
    own, mean = payload[OWN], payload[MEAN]
    if any(key not in own or own[key].shape != value.shape for key, value in mean.items()):
        raise UserError("the server's task: the two models do not fit each other", public="refused: models differ")
    net = build_unet(settings.task).to(device)
    scores = []
    for share in shares:
        if aborted():
            raise Aborted
        net.load_state_dict(mixed(own, mean, share, count))
        scores.append(float(dice_report(net, net, batches())["score"]))
    return scores
