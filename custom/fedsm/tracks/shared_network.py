"""One network for all sites, at the server: the sites' changes are averaged and added."""

from __future__ import annotations

from fedsm.core.state import RunningMean
from fedsm.core.tensors import Tensors


class SharedNetwork:
    """w <- w + sum_k (n_k / n) (w_k - w), over the sites that answered.

    Equal to averaging the weights, and what privacy filters of a site are made for. With no answer at all the model
    stays.

    Args:
        weights: where it starts.
    """

    def __init__(self, weights: Tensors):
        self.weights = weights
        self._mean = RunningMean(weights)

    @property
    def answers(self) -> int:
        """How many changes were added in the open round."""
        return self._mean.count

    def add(self, change: Tensors, weight: float, index: int) -> None:
        """Adds the change of the site with this index."""
        self._mean.add(change, weight, index)

    def close(self, everybody: bool) -> None:
        """Ends a round; `everybody`: all sites answered."""
        old = self.weights
        if self._mean.count:
            self.weights = self._mean.added_to(old)
        # A site that did not answer may still be downloading the old model: then it is left alone.
        self._mean = RunningMean(self.weights, spare=old if everybody else None)

    def take_mean(self) -> Tensors:
        """Ends a round without a new model: the weighted mean of what was added."""
        mean = self._mean.take()
        self._mean = RunningMean(self.weights)
        return mean
