"""What a run with `update_privacy` has cost each site in privacy."""

from __future__ import annotations

from typing import Any

from fedsm.core.privacy_loss import NoisySteps, epsilon_of
from fedsm.core.settings import UpdatePrivacy


def update_loss(privacy: UpdatePrivacy, rounds: int) -> dict[str, Any]:
    """For results.json, after so many rounds: each is one Gaussian mechanism in which every site is (q = 1)."""
    steps = NoisySteps(privacy.noise_multiplier, 1.0, rounds)
    return {"epsilon": epsilon_of([steps], privacy.delta)} | privacy.to_dict() | {"rounds": rounds}
