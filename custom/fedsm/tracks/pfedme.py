"""pFedMe: every site has a model of its own, held near a shared one as by an elastic band (a Moreau envelope).

    for every batch D:  theta ~ argmin f(theta; D) + prox / 2 ||theta - w||^2           (`inner_steps` steps)
                        w <- w - outer_lr * prox * (w - theta)
    server:             w <- (1 - beta) w + beta sum_k (n_k / n) w_k

Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, Algorithm 1 (`prox` is its
lambda). The paper weights the w_k equally; here by images, as our FedAvg does. What is scored, remembered as best and
delivered is theta after the last batch, never w.

The paper leaves the inner solver open. An inner step here is a gradient step on f, then the exact proximal step:

    theta <- w + (theta - w - inner_lr * grad f(theta; D)) / (1 + inner_lr * prox)

It has the same fixed point as plain gradient steps, and no prox is too large for it: theta just stays at w, where
plain steps diverge for inner_lr * prox > 2. Adam would not help: its steps have size inner_lr whatever the gradient,
and the distance from w is so small (grad f / prox) that theta would only oscillate around w. So there are no moments
to keep. theta starts each round at w and goes on from batch to batch, as in the authors' code.

outer_lr * prox may be at most 1, which moves w onto theta; the default is 60 * 0.015 = 0.9. w then moves as with SGD of
about the rate outer_lr; a smaller prox allows a larger rate. The paper's prox of 15 is for losses whose gradients are
larger than those of a Dice loss in a U-Net: with it theta hardly left w. A prox of 0.015 with an inner_lr of 10 was the
best of five pairs on nuclei (RESULTS.md). The job's lr is not used here; its schedule scales outer_lr, the rate
with which w learns, and leaves inner_lr alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pydantic import Field

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_STEPS
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.base import TRAIN, Phase
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.shared_and_personal import SharedAndPersonalClient, SharedAndPersonalServer


class PFedMeOptions(TrackOptions):
    """Options of `pfedme`."""

    prox: float = Field(default=0.015, ge=1e-6, description="How strongly theta is held near w; the paper's lambda.")
    inner_steps: int = Field(default=5, ge=1, le=MOST_STEPS, description="Steps of theta for each batch.")
    inner_lr: float = Field(default=10.0, ge=1e-6, description="Rate of theta's steps.")
    outer_lr: float = Field(default=60.0, ge=0, description="Rate of w; outer_lr * prox may be at most 1.")
    beta: float = Field(default=1.0, ge=0, description="How far the server moves w to the average.")


class PFedMeClient(SharedAndPersonalClient):
    """`shared` is w, `net` is theta. No image passes through w: it takes over theta's buffers."""

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self.net.load_state_dict(self.shared.state_dict())

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        """Returns f(theta; D) before the last inner step, without the proximal term."""
        rate, prox = self.options["inner_lr"], self.options["prox"]
        pairs = list(zip(self.net.parameters(), self.shared.parameters(), strict=True))
        loss = None
        for _ in range(self.options["inner_steps"]):
            loss, gradients = self.gradients(self.net, images, labels)
            with torch.no_grad():
                for (theta, w), gradient in zip(pairs, gradients, strict=True):
                    theta.copy_(w + (theta - w - rate * gradient) / (1 + rate * prox))
        with torch.no_grad():
            for theta, w in pairs:
                w.lerp_(theta, self.options["outer_lr"] * self.site.rate_factor * prox)
        return loss

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase == TRAIN:
            for buffer, seen in zip(self.shared.buffers(), self.net.buffers(), strict=True):
                buffer.copy_(seen)
        return super().send(phase, training_images)


class PFedMeServer(SharedAndPersonalServer):
    """FedAvg of the w_k, mixed with the old w. beta = 1 is the average itself, beta > 1 goes beyond it.

    Sites that did not answer a round take no part in its average; their theta stays until their next round.
    """

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        reach = options["outer_lr"] * options["prox"]
        if reach > 1 + 1e-9:
            raise UserError(
                f"pfedme: outer_lr * prox is {reach:g} and w would jump past theta",
                remedy=f"with prox {options['prox']:g}, outer_lr may be at most {1 / options['prox']:.4g}",
            )

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        beta = self.options["beta"]
        if phase == TRAIN and beta != 1:
            tensors = {k: v * beta if self.weights[k].is_floating_point() else v for k, v in tensors.items()}
        super().accept(phase, site, tensors, weight)
