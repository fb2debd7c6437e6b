"""The privacy loss that Google's accountant finds, to compare with."""

from __future__ import annotations

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from fedsm.core.privacy_loss import NoisySteps


def reference(steps: list[NoisySteps], delta: float) -> float:
    """Epsilon of these steps."""
    accountant = PLDAccountant()
    for one in steps:
        event = GaussianDpEvent(one.noise)
        accountant.compose(PoissonSampledDpEvent(one.rate, event) if one.rate < 1 else event, one.count)
    return accountant.get_epsilon(delta)
