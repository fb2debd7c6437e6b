"""Ditto: a personal network of the site's own, held near the global one.

    v_k <- v_k - eta (grad F_k(v_k) + prox (v_k - w_g))      for every batch; w_g as received this round

Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1 (`prox` is its
lambda). The paper steps with SGD; here Adam sees the gradient in the brackets. v_k never leaves the site before the
end and never touches w_g. prox = 0 is `local`. The reported loss includes prox / 2 ||v_k - w_g||^2.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import Field

from fedsm.core.tensors import Batch
from fedsm.tracks.fedprox import anchor_of, squared_distance
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.site_personal import SitePersonalClient


class DittoOptions(TrackOptions):
    """Options of `ditto`."""

    prox: float = Field(default=0.1, ge=0, description="Pull towards the global model; 0 is `local`.")


class DittoClient(SitePersonalClient):
    """Goes on from its own v_k; the loss grows with the distance from the received global model."""

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._anchor = anchor_of(self.net, self.global_track.received)

    def penalty(self) -> torch.Tensor:
        return float(self.options["prox"]) / 2 * squared_distance(self.net, self._anchor)
