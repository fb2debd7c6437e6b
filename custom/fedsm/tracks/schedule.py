"""The learning rate over the rounds.

    warm-up   t = 1 .. W        lr_t = lr t / (W + 1)
    constant  t = W + 1 .. R    lr_t = lr
    cosine    t = W + 1 .. R    lr_t = lr / 2 (1 + cos(pi (t - W - 1) / (R - W)))

with W = `warmup_rounds` and R the rounds in which the U-Nets are trained: all, or with FedSM-extra those before the
selector's own. The cosine is that of Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts",
ICLR 2017, without restarts. It is `lr` in the first round after the warm-up and above 0 in the last, so that no round
is wasted; with one round it is constant. Within a round the rate does not change.

A site computes it from the round's number and the settings, which both come with the task: a restarted site and a
resumed run have the right rate. A run that goes on with more rounds (`fedsm resume --rounds`) follows the schedule of
its new length from the next round on: the rate rises again. Only with a constant rate is it the run that would have had
that length from the start.

What is scaled is the rate with which U-Nets learn: `lr`, FT's `lr_factor * lr`, pFedMe's `outer_lr`. A method's other
rates (Per-FedAvg's and pFedMe's `inner_lr`, APFL's `eta_alpha`) and a trained selector's `selector_lr` stay.
"""

from __future__ import annotations

import math


def rate_factor(schedule: str, warmup_rounds: int, number: int, rounds: int) -> float:
    """lr_t / lr.

    Args:
        schedule: `constant` or `cosine`.
        warmup_rounds: W.
        number: the round t, from 1 to `rounds`.
        rounds: R.
    """
    if number <= warmup_rounds:
        return number / (warmup_rounds + 1)
    if schedule == "constant":
        return 1.0
    return (1 + math.cos(math.pi * (number - warmup_rounds - 1) / (rounds - warmup_rounds))) / 2
