"""One batch on several devices: each takes a part of its images, and all take the same step.

    g = sum_r (n_r / n) g_r        g_r: the gradient of the mean loss over the n_r images of device r;   n = sum_r n_r

For a loss that is a mean over images, as every loss of `Learner.descend` is, g is the gradient of the whole batch. A
penalty on the weights has the same gradient on all devices, and the parts n_r / n sum to 1. All devices start from the
same weights and moments and see the same g, so they stay equal, and nothing but g travels between them.

Layers that look at several images at once, as batch norm does, would see other images than on one device. And a track
that takes gradients itself, past `Learner.descend`, would step with its own part alone. Both are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.nets import build_unet
from fedsm.nets.mixing import mixing_layer
from fedsm.tracks.base import ClientTrack

_REMEDY = "or the site takes `devices` out of fedsm_site.yaml"


class SharedGradients:
    """Adds up the gradients of a network over devices.

    Args:
        add_up: replaces a tensor by its sum over all devices; everywhere called in the same order.

    Attributes:
        share: n_r / n of the present batch.
    """

    def __init__(self, add_up: Callable[[torch.Tensor], None]):
        self._add_up = add_up
        self.share = 1.0

    @torch.no_grad()
    def add_up(self, parameters: Iterable[nn.Parameter]) -> None:
        """Turns gradients of n_r / n of each device's loss into g, with one message for all parameters."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self._add_up(flat)
        sums = flat.split([g.numel() for g in gradients])  # type: ignore[no-untyped-call]
        torch._foreach_copy_(gradients, [s.view_as(g) for s, g in zip(sums, gradients, strict=True)])


def share_gradients(tracks: Mapping[str, ClientTrack], gradients: SharedGradients) -> None:
    """From now on, all networks that a site trains step with the sum over its devices; see `check_shareable`."""
    for track in tracks.values():
        if not track.sums:
            track.learner.shared = gradients  # type: ignore[attr-defined]


def check_shareable(settings: JobSettings, kinds: Mapping[str, type[ClientTrack]]) -> None:
    """Refuses a job whose batches cannot be split; makes no weights.

    Args:
        settings: the job's settings.
        kinds: the client half of each of its tracks.

    Raises:
        UserError: a track that takes gradients itself, or a network in which images of a batch mix.
    """
    for name, kind in kinds.items():
        if not kind.sums and not kind.private:
            word = settings.tracks[name]["kind"]
            message = f"{word!r} (track {name!r}) takes gradients itself, which several devices cannot share"
            raise UserError(message, remedy=f"ask for a job with another kind, {_REMEDY}", public=message)
    with torch.device("meta"):
        net = build_unet(settings.task)
    if mixing := mixing_layer(net):
        message = f"{type(mixing).__name__} looks at the whole batch, of which each of several devices sees a part"
        remedy = f"ask for a job whose task.unet.norm is INSTANCE or GROUP, {_REMEDY}"
        raise UserError(message, remedy=remedy, public=message)
