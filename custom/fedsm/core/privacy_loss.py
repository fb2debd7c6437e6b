"""What noisy steps cost in privacy, and how much noise a planned number of them needs: by Opacus' accountants.

    one step    each person is in it with probability q, moves a sum by at most C, and the sum gets N(0, (z C)^2 I)
    all steps   (epsilon, delta), composed over steps of one or of several (z, q)

Two upper bounds are known: RDP, which composes Renyi divergences (Mironov 2017; Mironov, Talwar, Zhang 2019), and PRV,
which composes the distributions of the privacy loss numerically (Gopi, Lee, Wutschitz, NeurIPS 2021). PRV is smaller by
10 to 20 % and adds its own numerical error, here 0.4 % of RDP's bound, which is computed first. Where RDP's bound
says that nothing is protected (`_HOPELESS`), or a job plans more steps than PRV can add up in a site's memory, RDP's
bound is taken. Neighbours are two data sets of which one lacks what a person adds to the sums; q is the same for both.

Opacus is imported when a site or a job asks for differential privacy, and never else.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsm.core.errors import UserError

_MOST_NOISE = 1e6  # a noise multiplier beyond this is no training
_CLOSE = 2e-3  # how close to the smallest noise multiplier, as a part of it; never below it
_ERROR = 4e-3  # of PRV, as a part of RDP's epsilon
_HOPELESS = 200.0
_MOST_STEPS = 10**6  # of PRV, whose memory grows with them: a job decides their number
_ORDERS = [*range(2, 65), *(2**p for p in range(7, 13))]  # whole ones: others take a hundred times as long


@dataclass(frozen=True)
class NoisySteps:
    """Steps of one kind.

    Attributes:
        noise: z, the noise's standard deviation divided by what one person can move.
        rate: q, the probability with which a person is in a step.
        count: how many steps.
    """

    noise: float
    rate: float
    count: int


def accountants() -> Any:
    """The module `opacus.accountants`.

    Raises:
        UserError: Opacus is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus.accountants
    except ImportError as e:
        message = "differential privacy needs Opacus, which is not installed"
        remedy = "pip install 'fedsm[dp]'"
        raise UserError(message, remedy=remedy, public=f"{message}; {remedy}") from e
    return opacus.accountants


def epsilon_of(steps: Iterable[NoisySteps], delta: float) -> float:
    """The epsilon of all steps together; 0 for none."""
    counts: dict[tuple[float, float], int] = {}
    for one in steps:
        if one.count:
            counts[one.noise, one.rate] = counts.get((one.noise, one.rate), 0) + one.count
    return _epsilon(tuple((*kind, count) for kind, count in sorted(counts.items())), delta)


def noise_for(epsilon: float, delta: float, rate: float, count: int) -> float:
    """The smallest noise multiplier with which so many steps cost at most epsilon, to 0.2 % and never below it.

    Raises:
        UserError: no amount of noise does.
    """
    if _rdp(((_MOST_NOISE, rate, count),), delta) > epsilon:
        message = f"no noise makes {count} steps cost at most epsilon {epsilon:g} at delta {delta:g}"
        remedy = "raise epsilon or delta of dp in fedsm_site.yaml, or ask for fewer rounds"
        raise UserError(message, remedy=remedy, public=message)
    high = _smallest(0.0, _MOST_NOISE, lambda noise: _rdp(((noise, rate, count),), delta) <= epsilon)
    return _smallest(high / 2, high, lambda noise: epsilon_of([NoisySteps(noise, rate, count)], delta) <= epsilon)


def _smallest(low: float, high: float, enough: Callable[[float], bool]) -> float:
    """Between a number that may not be enough and one that is, the smallest that is."""
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@functools.lru_cache(maxsize=256)
def _epsilon(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if not history:
        return 0.0
    bound = _rdp(history, delta)
    if bound > _HOPELESS or sum(count for *_, count in history) > _MOST_STEPS:
        return bound
    prv = accountants().PRVAccountant()
    prv.history = list(history)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of the ends of its grid, and as below
        return min(bound, float(prv.get_epsilon(delta, eps_error=_ERROR * bound)))


def _rdp(history: tuple[tuple[float, float, int], ...], delta: float) -> float:
    rdp = accountants().RDPAccountant()
    rdp.history = list(history)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or the last: the bound holds for any
        return float(rdp.get_epsilon(delta, alphas=_ORDERS))
