"""APFL: the personal model is a mixture of a network of the site's own and its copy of the global one.

    vbar = alpha v + (1 - alpha) w                                   at the start of a round: w = w_g
    w     <- the global track's own step on the batch
    v     <- Adam(v, alpha grad f(vbar))
    alpha <- clip(alpha - eta_alpha <v - w, grad f(vbar)>, 0, 1)     v, w as in vbar; only with adapt = yes
    vbar  <- alpha v + (1 - alpha) w                                 all three new

Deng et al., "Adaptive personalized federated learning", 2020, Algorithm 1 and its adaptive alpha. The gradient is
that at vbar^{t-1}, and alpha steps with every batch. eta_alpha is 1: with 0.01 alpha hardly left 0.5 in 60 rounds of
nuclei, with 1 the sites ended between 0.40 and 0.67 (RESULTS.md). The paper steps with SGD. Adam cancels a constant
factor alpha, so alpha affects v through its changes, and above all through the point where the gradient is taken.
alpha = 1 without adapting is `local`.

The mixture is what is scored, remembered as best and delivered. Its w is the site's trained copy, not the average
that follows. Float buffers are mixed like weights. v takes over the mixture's buffers after each pass, and integer
buffers of the mixture are those of v.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field

from fedsm.core.state import copy, part, prefixed
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.site_personal import SitePersonalClient

# `yes` or `no`, which a job may also write as true or false.
YesNo = Annotated[
    Literal["yes", "no"],
    BeforeValidator(lambda value: {True: "yes", False: "no"}[value] if isinstance(value, bool) else value),
]


class APFLOptions(TrackOptions):
    """Options of `apfl`."""

    alpha: float = Field(default=0.5, ge=0, le=1, description="Share of the site's own network at the start.")
    adapt: YesNo = Field(default="yes", description="Whether alpha learns, too.")
    eta_alpha: float = Field(default=1.0, ge=0, description="Step size of alpha.")


class APFLClient(SitePersonalClient):
    """`net` is the mixture vbar, `own` is v, and w is the global track's network, which steps first."""

    private = False  # alpha learns from the gradients themselves
    reads_others = True  # w, as the global track's step has just left it

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.own = deepcopy(self.net)
        self.learner.optimizer = torch.optim.Adam(self.own.parameters(), **self.learner.optimizer.defaults)
        self._alpha = self._on_device(self.options["alpha"])

    @property
    def alpha(self) -> float:
        """The share of the site's own network."""
        return self._alpha.item()

    def _on_device(self, alpha: float) -> torch.Tensor:
        return torch.tensor(alpha, dtype=torch.float64, device=self.site.device)

    def start(self, weights: Tensors) -> None:
        super().start(weights)
        self.own.load_state_dict(weights)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._mix()

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        self.net.train()
        loss = self.loss(self.learner.forward(images), labels)
        gradients = torch.autograd.grad(loss, list(self.net.parameters()), materialize_grads=True)

        for v, gradient in zip(self.own.parameters(), gradients, strict=True):
            v.grad = self._alpha * gradient
        self.learner.step()
        for buffer, seen in zip(self.own.buffers(), self.net.buffers(), strict=True):
            buffer.copy_(seen)
        if self.options["adapt"] == "yes":
            slopes = [(d * g).sum() for d, g in zip(self._differences, gradients, strict=True)]
            slope = sum(slopes[1:], slopes[0]).double()
            self._alpha = (self._alpha - self.options["eta_alpha"] * slope).clamp(0, 1)
        self._mix()
        return loss.detach()

    @torch.no_grad()
    def _mix(self) -> None:
        """vbar from v and w as they are; keeps v - w, because w has moved on when alpha needs it."""
        v, w = self.own.state_dict(), self.global_track.net.state_dict()
        alpha = self._alpha.float()
        for name, mixed in self.net.state_dict().items():
            # lerp gives exactly v at alpha = 1 and exactly w at 0.
            mixed.copy_(torch.lerp(w[name], v[name], alpha) if mixed.is_floating_point() else v[name])
        self._differences = [v[name] - w[name] for name, _ in self.net.named_parameters()]

    def state(self) -> Tensors:
        return super().state() | prefixed("own", copy(self.own.state_dict())) | {"alpha": self._alpha.cpu()}

    def load_state(self, state: Tensors) -> None:
        super().load_state(state)
        self.own.load_state_dict(part("own", state) or self.first_weights())
        self._alpha = self._on_device(float(state.get("alpha", self.options["alpha"])))
