"""Per-FedAvg: a shared model that is a good start for one gradient step at every site.

    for every two batches D, D':  w~ = w - a grad f(w; D)
                                  w  <- Adam(w, v),             v = grad f(w~; D')                    (`fo`)
                                  w  <- Adam(w, v - a H v),     H the Hessian of f(.; D) at w         (`hf`)
    server:                       w  <- sum_k (n_k / n) w_k
    personal:                     theta_k = w after `adapt_steps` steps  theta <- theta - a grad f(theta; batch)

Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020. a is `inner_lr`; 1 was the best of 0.01, 0.1 and 1 on nuclei (RESULTS.md), the
gradient of a Dice loss being short. H v is (grad f(w + d v) - grad f(w - d v)) / 2d, as in their
HF variant; they draw a third batch for H, we take D, which makes `hf` the derivative of f(w~(w); D') itself, as far as
the finite difference is exact. Compared with double backward, on the default U-Net and two batches of nuclei, it was
7 % off (cosine 0.998) after 80 steps of training and 133 % (cosine 0.59) at the first weights, there 63 % at best, with
a d v ten times longer. The paper's outer step is SGD; here it is Adam, whose moments stay at the site.

A last batch without a partner is its own partner (D' = D): no image is left out, and a site with one batch learns too.
theta_k starts each round from the received w and takes its steps on the round's first batches (fewer, if the pass has
fewer). It is one average behind: what is delivered was adapted from a w that a site received, not from the last
average, which no site trains on. inner_lr = 0 with `fo` is FedAvg on every second batch. The job's
schedule scales Adam's rate of w; a stays, because it says what theta is, not how fast w learns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import Field

from fedsm.core.limits import MOST_STEPS
from fedsm.core.tensors import Batch
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.shared_and_personal import SharedAndPersonalClient

_TINY = 1e-30
_REACH = 1e-2  # length of d v: far above float32's rounding, far below a network's norm


class PerFedAvgOptions(TrackOptions):
    """Options of `per-fedavg`."""

    variant: Literal["fo", "hf"] = Field(
        default="fo", description="First order, or with the Hessian by finite differences."
    )
    inner_lr: float = Field(default=1.0, ge=0, description="Rate a of the inner step.")
    adapt_steps: int = Field(
        default=1, ge=1, le=MOST_STEPS, description="Inner steps that turn the shared network into the personal one."
    )


class PerFedAvgClient(SharedAndPersonalClient):
    """`shared` is the meta model w, `net` the adapted model theta_k.

    Batch statistics (buffers) of w are those after its two passes over D and D'.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.learner.optimizer = torch.optim.Adam(self.shared.parameters(), **self.learner.optimizer.defaults)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self.net.load_state_dict(self.shared.state_dict())
        self._adapted = 0
        self._left = n_images
        # D and w, while the shared network holds w~
        self._open: tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]] | None = None

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        if self._adapted < self.options["adapt_steps"]:
            self._descend(self.net, images, labels)
            self._adapted += 1
        self._left -= len(images)
        if self._open:
            return self._close_pair(images, labels)
        w = [p.detach().clone() for p in self.shared.parameters()]
        loss = self._descend(self.shared, images, labels)
        self._open = (images, labels, w)
        if self._left <= 0:
            self._close_pair(images, labels)
        return loss

    def _descend(self, net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One plain gradient step of rate a; returns the loss before it."""
        loss, gradients = self.gradients(net, images, labels)
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=self.options["inner_lr"])
        return loss

    def _close_pair(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The meta step, with D' = (images, labels); returns f(w~; D')."""
        loss, gradients = self.gradients(self.shared, images, labels)
        assert self._open is not None
        first_images, first_labels, w = self._open
        self._open = None
        self._put(w)
        if self.options["variant"] == "hf":
            products = self._hessian_times(gradients, w, first_images, first_labels)
            gradients = [v - self.options["inner_lr"] * hv for v, hv in zip(gradients, products, strict=True)]
        for parameter, gradient in zip(self.shared.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.learner.step()
        return loss

    def _hessian_times(
        self, v: list[torch.Tensor], w: list[torch.Tensor], images: torch.Tensor, labels: torch.Tensor
    ) -> list[torch.Tensor]:
        """H v by central differences, at w and on one batch; leaves weights and buffers as they are."""
        length = torch.stack([x.square().sum() for x in v]).sum().sqrt().double()
        d = _REACH / length.clamp(min=_TINY)  # v = 0: H v = 0
        buffers = [b.clone() for b in self.shared.buffers()]
        ends = []
        for sign in (1, -1):
            self._put([p + sign * d * x for p, x in zip(w, v, strict=True)])
            ends.append(self.gradients(self.shared, images, labels)[1])
        self._put(w)
        for buffer, old in zip(self.shared.buffers(), buffers, strict=True):
            buffer.copy_(old)
        return [(plus - minus) / (2 * d) for plus, minus in zip(*ends, strict=True)]

    @torch.no_grad()
    def _put(self, values: list[torch.Tensor]) -> None:
        for parameter, value in zip(self.shared.parameters(), values, strict=True):
            parameter.copy_(value)
