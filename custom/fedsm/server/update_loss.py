"""What a run with `update_privacy` has cost each site in privacy."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedsm.core.privacy_loss import NoisySteps, epsilon_of
from fedsm.core.settings import JobSettings, UpdatePrivacy


def noisy_rounds(job: JobSettings, history: list[dict]) -> int:
    """The rounds that count: all, or with `fraction` the most that one site's updates were in.

    A round without a site tells nothing of it. That is all that drawing sites gains here: who is drawn is known to
    everybody who knows the job's seed, so there is no amplification by subsampling, which needs a secret draw.
    """
    if job.fraction == 1:
        return len(history)
    return max(Counter(site for row in history for site in row["answered"]).values(), default=0)


def update_loss(privacy: UpdatePrivacy, rounds: int) -> dict[str, Any]:
    """For results.json, after so many rounds: each is one Gaussian mechanism in which the site is (q = 1)."""
    steps = NoisySteps(privacy.noise_multiplier, 1.0, rounds)
    return {"epsilon": epsilon_of([steps], privacy.delta)} | privacy.to_dict() | {"rounds": rounds}
