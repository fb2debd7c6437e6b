"""A U-Net's weights averaged over the rounds.

    a_t = a_{t-1} + c_t (w_t - a_{t-1}),      c_t = (1 - m) / (1 - m^t)

with w_t the weights that the t-th round made, m the job's `ema` and t counting the rounds that changed this network: a
moving average w_ema <- m w_ema + (1 - m) w that starts at 0, divided by 1 - m^t, as Adam corrects its moments. So the
first round's average is w_1 itself, early rounds are not held back by the first weights, and the weights of all rounds
sum to 1: (1 - m) m^(t-i) / (1 - m^t) for round i. m = 0 is the last round alone; m towards 1 is the mean of all.

The average is what is validated, kept as the best round and put into the super model. Training never sees it: the next
round goes on from w_t. Integer buffers are the last round's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsm.core.model_store import opened
from fedsm.core.state import copy
from fedsm.core.tensors import Tensors

AVERAGE = "ema"  # what the average's entries are kept under, beside those of the network


@dataclass(frozen=True)
class RoundAverage:
    """The average after some rounds.

    Attributes:
        momentum: m.
        weights: a_t.
        updates: t; 0: no round yet, and `weights` are those before the first.
    """

    momentum: float
    weights: Tensors
    updates: int = 0

    @staticmethod
    def before(momentum: float, weights: Tensors) -> RoundAverage:
        """The average before the first round: a copy of the weights."""
        return RoundAverage(momentum, copy(weights))

    def after(self, weights: Tensors) -> RoundAverage:
        """The average with one more round, in new tensors: a slow download may still read the old ones."""
        t = self.updates + 1
        share = (1 - self.momentum) / (1 - self.momentum**t)
        before, now = opened(self.weights), opened(weights)
        last = {key: now[key].detach().cpu() for key in before}
        new = {
            key: torch.lerp(old, last[key], share) if old.is_floating_point() else last[key].clone()
            for key, old in before.items()
        }
        return RoundAverage(self.momentum, new, t)
