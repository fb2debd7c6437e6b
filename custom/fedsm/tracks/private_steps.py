"""Private gradients: every image's gradient is clipped, and noise is added to their sum, before an optimizer sees it.

    g_i  = grad of image i's loss                                  per-sample gradients: Opacus' `GradSampleHooks`
    g_i <- g_i min(1, C / |g_i|)                                    |.| over all parameters of one network
    G    = (sum_i g_i + N(0, (z sqrt(T) C)^2 I)) / B                B the expected number of images in a batch

The optimizer takes G for the gradient of the batch; whatever it, the round and the server do with it afterwards is
postprocessing. A batch steps T networks, each with noise of its own. Their clipped gradients, divided by C and put
into one vector, have a norm of at most sqrt(T). So this step is one Gaussian mechanism with the multiplier z, which is
what the accountant counts. Images are drawn by Poisson sampling, at most one of each patient (`data/poisson.py`), so
that |.| <= C bounds what a patient moves. B is a constant: the number that was really drawn would tell of a patient.

Opacus' `PrivacyEngine` and `DPOptimizer` are not used. They wrap loader, network and optimizer of one training, and
here several networks share a batch, some with terms in their loss that no image has part in. And `DPOptimizer` draws
its noise from torch's generator: on a CPU that holds 32 bits of a seed, and a trainer sets it to the job's, which the
server knows. Noise and batches are drawn from a generator that the operating system seeds with 128 bits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import accountants
from fedsm.data.staging import to_device
from fedsm.nets.mixing import mixing_layer
from fedsm.tracks.base import ClientTrack

_TINY = 1e-12  # so that a gradient of zero is not divided by zero


@dataclass
class StepNoise:
    """What all networks of a site share in a private step.

    Attributes:
        clip: C.
        multiplier: z, for all networks of a batch together.
        batch: B.
        networks: T, the networks that the round's batches step.
        empty: whether nobody was drawn: the batch then holds one image that does not count.
        rng: where the noise comes from.
    """

    clip: float
    multiplier: float
    batch: float
    networks: int = 1
    empty: bool = False
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on a sum of clipped gradients."""
        return self.multiplier * self.clip * math.sqrt(self.networks)

    def draw(self, like: torch.Tensor) -> torch.Tensor:
        """Noise for one tensor."""
        noise = self.rng.standard_normal(tuple(like.shape), dtype=np.float32) * np.float32(self.deviation)
        return to_device(torch.from_numpy(np.asarray(noise, dtype=np.float32)), like.device).to(like.dtype)


class PrivateGradients:
    """Puts private gradients into a network's parameters.

    Args:
        net: the network; its layers get Opacus' hooks, its weights and their names stay as they are.
        noise: shared by all networks of the site.
    """

    def __init__(self, net: nn.Module, noise: StepNoise):
        _check_layers(net)
        for module in net.modules():
            if getattr(module, "inplace", False) is True:
                setattr(module, "inplace", False)  # noqa: B010  # the same values; hooks cannot look at what is overwritten
        from opacus.grad_sample import GradSampleHooks

        warnings.filterwarnings("ignore", "Full backward hook is firing")  # the images need no gradient
        self._hooks = GradSampleHooks(net, loss_reduction="mean")
        self._net, self._noise = net, noise

    def backward(self, loss: torch.Tensor) -> None:
        """Sets the gradients of a loss that is a mean over a batch's images."""
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = [p for p in self._net.parameters() if p.requires_grad]
        samples = [_taken(p) for p in parameters]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples if g is not None]).norm(dim=0)
        factors = (self._noise.clip / (norms + _TINY)).clamp(max=1.0)
        for parameter, gradients in zip(parameters, samples, strict=True):
            total = self._noise.draw(parameter)
            if gradients is not None and not self._noise.empty:
                total += torch.einsum("i,i...->...", factors, gradients)
            parameter.grad = total / self._noise.batch


def _taken(parameter: nn.Parameter) -> torch.Tensor | None:
    """A parameter's per-sample gradients (B, ...), which it then no longer holds; None: it took no part."""
    samples = getattr(parameter, "grad_sample", None)
    parameter.grad_sample = None  # type: ignore[attr-defined]
    if isinstance(samples, list):  # a layer that was used more than once
        samples = torch.stack(samples).sum(0)
    # No clip makes NaN or infinity small, and that training diverged would be told without noise.
    return None if samples is None else samples.float().nan_to_num(0.0, 0.0, 0.0)


def _check_layers(net: nn.Module) -> None:
    """Refuses a network in which images of a batch mix, or whose per-sample gradients cannot be had.

    Opacus looks at layers with weights only; batch norm mixes images without any, and running statistics would leave
    as they are.

    Raises:
        UserError: naming the layer.
    """
    accountants()  # says in words that Opacus is missing
    from opacus.validators import ModuleValidator

    mixing = mixing_layer(net)
    if mixing or ModuleValidator.validate(net, strict=False):
        what = type(mixing).__name__ if mixing else "one of its layers"
        message = f"no differential privacy with this network: {what} cannot be made private"
        remedy = "ask for a job whose task.unet.norm is INSTANCE or GROUP, which look at one image alone"
        raise UserError(message, remedy=remedy, public=f"{message}; {remedy}")


def make_private(tracks: Mapping[str, ClientTrack], noise: StepNoise) -> None:
    """From now on, all networks that a site trains get private gradients.

    Args:
        tracks: the client halves of a job; those that send sums train nothing.
        noise: shared by all.

    Raises:
        UserError: a track that learns in another way, or a network that cannot be made private.
    """
    for name, track in tracks.items():
        if track.sums:
            continue
        if not track.private:
            kind: Any = track.settings.tracks[name]["kind"]
            message = f"no differential privacy with {kind!r} (track {name!r}), which does not learn by steps alone"
            remedy = "ask for a job with another kind, or take `dp` out of fedsm_site.yaml"
            raise UserError(message, remedy=remedy, public=message)
        learner = track.learner  # type: ignore[attr-defined]
        learner.private = PrivateGradients(learner.net, noise)
