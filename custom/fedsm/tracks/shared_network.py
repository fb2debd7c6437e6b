"""One network for all sites, at the server: the sites' changes are averaged and added."""

from __future__ import annotations

from fedsm.core.state import RunningMean
from fedsm.core.tensors import Tensors


class SharedNetwork:
    """w <- w + sum_k (n_k / n) (w_k - w), over the sites that answered.

    The result equals the average of the weights, and differences are what a site's privacy filters are made for. With
    no answer at all the model stays.

    Args:
        weights: where it starts.
        sites: names of all sites; their order gives the index.
    """

    def __init__(self, weights: Tensors, sites: list[str]):
        self.weights = weights
        self._sites = sites
        self._mean = RunningMean(weights)

    @property
    def answers(self) -> int:
        """How many changes were added in the open round."""
        return self._mean.count

    @property
    def all_answered(self) -> bool:
        """Whether every site's change was added in the open round."""
        return self.answers == len(self._sites)

    def add(self, site: str, change: Tensors, weight: float) -> None:
        """Adds a site's change."""
        self._mean.add(change, weight, self._sites.index(site))

    def close(self) -> None:
        """Ends a round."""
        old, all_answered = self.weights, self.all_answered
        if self._mean.count:
            self.weights = self._mean.added_to(old)
        # A site that did not answer may still be downloading the old model: its tensors must not be reused then.
        self._mean = RunningMean(self.weights, spare=old if all_answered else None)

    def take_mean(self) -> Tensors:
        """Ends a round without a new model: the weighted mean of what was added."""
        mean = self._mean.take()
        self._mean = RunningMean(self.weights)
        return mean
