"""The server's part of `personal_mix`: the mean that sites try shares of, and the share that each site gets.

A site chooses for itself alone: what it reports changes no other site's model. It can make its own worse.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from fedsm.core.limits import is_fraction
from fedsm.core.personal_mix import mixed
from fedsm.core.state import RunningMean
from fedsm.core.tensors import Tensors
from fedsm.selectors.inference import personal


class PersonalMix:
    """The personal models of a run, and the mean of all of them.

    Args:
        models: site -> its personal model, at least two.
        held: entries that are each site's own, and not mixed.
        shares: the shares that sites try, ascending, 0 first.
    """

    def __init__(self, models: dict[str, Tensors], held: Set[str], shares: list[float]):
        self.models, self._shares = models, shares
        self.count = len(models)
        mean = RunningMean(next(iter(models.values())))
        for model in models.values():
            mean.add(model, 1.0)
        self.mean = {key: value for key, value in mean.take().items() if key not in held}

    def problem(self, scores: Any) -> str | None:
        """What is wrong with the scores that a site sent, or None."""
        if not isinstance(scores, list) or len(scores) != len(self._shares):
            return f"personal_mix: expected Dice at {len(self._shares)} shares"
        return None if all(map(is_fraction, scores)) else "personal_mix: Dice is not in [0, 1]"

    def choice(self, scores: list[float] | None) -> dict[str, Any]:
        """A site's share and its `curve`: the best share, the smallest of equals; 0 for a site that did not answer."""
        if scores is None:
            return {"share": 0.0, "curve": []}
        best = max(round(score, 12) for score in scores)
        share = next(a for a, score in zip(self._shares, scores, strict=True) if round(score, 12) == best)
        curve = [{"share": a, "dice": score} for a, score in zip(self._shares, scores, strict=True)]
        return {"share": share, "curve": curve}

    def mixed(self, choices: dict[str, dict[str, Any]]) -> dict[str, Tensors]:
        """The personal models with each site's share of the others: model name -> weights."""
        return {
            personal(site): mixed(own, self.mean, choices[site]["share"], self.count)
            for site, own in self.models.items()
            if choices[site]["share"]
        }
