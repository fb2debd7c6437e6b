"""One network for all sites, at the server: the sites' changes are combined and added."""

from __future__ import annotations

from fedsm.core.tensors import Tensors
from fedsm.tracks.rules import MEAN, Rule


class SharedNetwork:
    """w <- w + rule_k (w_k - w), over the sites that answered; with the mean: w + sum_k (n_k / n) (w_k - w).

    With the mean, the result equals the average of the weights, and differences are what a site's privacy filters are
    made for. With no answer at all the model stays.

    Args:
        weights: where it starts.
        sites: names of all sites; their order gives the index.
        rule: how the changes are combined.
    """

    def __init__(self, weights: Tensors, sites: list[str], rule: Rule = MEAN):
        self.weights = weights
        self._sites = sites
        self._rule = rule
        self._changes = rule.collector(weights)

    @property
    def answers(self) -> int:
        """How many changes were added in the open round."""
        return self._changes.count

    @property
    def all_answered(self) -> bool:
        """Whether every site's change was added in the open round."""
        return self.answers == len(self._sites)

    def add(self, site: str, change: Tensors, weight: float) -> None:
        """Adds a site's change."""
        self._changes.add(change, weight, self._sites.index(site))

    def close(self) -> None:
        """Ends a round."""
        old, all_answered = self.weights, self.all_answered
        if self.answers:
            self.weights = self._changes.added_to(old)
        # A site that did not answer may still be downloading the old model: its tensors must not be reused then.
        self._changes = self._rule.collector(self.weights, spare=old if all_answered else None)

    def take_mean(self) -> Tensors:
        """Ends a round without a new model: the weighted mean of what was added."""
        mean = self._changes.take()
        self._changes = self._rule.collector(self.weights)
        return mean
