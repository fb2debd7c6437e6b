"""The rule by which updates of a shared network become one, and personal models a mean of the others: `aggregation`.

    rule              withstands, of K updates            weights (`max_share`, `site_weights`)     needs
    mean              bounded norms and shares only       the mean's                                1
    trimmed_mean      f                                   of the values that are left               2 f + 1
    median            fewer than K / 2                    none: every site counts the same          3
    multi_krum        f                                   of the updates that are chosen            2 f + 3
    geometric_median  fewer than K / 2                    none: every site counts the same          3

f is the job's `outliers`. SoftPull applies the rule to the K - 1 others of each site, without weights, and so needs one
answer more. `robust.py` has the formulas. Norms are judged before (`NormGuard`): a rule sees updates of bounded length.
Whole numbers (counters of norm layers) are the lower median of the sites' under every rule but the mean.

A rule needs a number of answers in every round. A job whose `min_sites` is lower is refused when it is built, so a
round with fewer is asked again and then stops the job, as any round with too few answers. Where fewer came all the
same, nothing is merged: the model stays.

The mean is formed as the updates arrive and holds one of them at a time. All other rules keep the updates of a round
until it closes: K networks more in the server's memory, for each shared track. A trimmed mean could be formed as a sum
less the extremes, but a sum that has held a huge value has lost the digits of the others. SoftPull keeps nothing more:
its K models are there anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import ClassVar, Protocol

import torch

from fedsm.core.settings import JobSettings
from fedsm.core.state import RunningMean, add_, copy
from fedsm.core.tensors import Tensors
from fedsm.tracks import robust
from fedsm.tracks.pull_in_place import soft_pull_, weighted_pull_


class Collector(Protocol):
    """Takes the updates of a round and makes one of them."""

    @property
    def count(self) -> int: ...

    def add(self, tensors: Tensors, weight: float, index: int = 0) -> None: ...

    def take(self) -> Tensors: ...

    def added_to(self, old: Tensors) -> Tensors: ...


class Rule(ABC):
    """How updates are combined.

    Args:
        outliers: f, how many updates may be anything.
    """

    needs_single_updates: ClassVar[bool] = True  # whether it cannot be formed from the sum of the updates alone

    def __init__(self, outliers: int):
        self.outliers = outliers

    @property
    @abstractmethod
    def least(self) -> int:
        """The fewest updates that it can combine."""

    @abstractmethod
    def merge(self, updates: list[Tensors], weights: list[float]) -> Tensors:
        """One update of at least `least`: the floats."""

    @abstractmethod
    def pull_(self, models: list[Tensors], lam: float, held: Set[str]) -> None:
        """SoftPull in place: `lam * w_k + (1 - lam) * rule(w_j, j != k)`, with at least `least` others."""

    def collector(self, template: Tensors, spare: Tensors | None = None) -> Collector:
        """What takes the updates of a round; `template` and `spare` as for `RunningMean`."""
        return KeptUpdates(template, self)

    def pull(self, models: list[Tensors], lam: float, held: Set[str]) -> None:
        """The same as `pull_`; with fewer others than the rule needs nothing is pulled."""
        if len(models) > self.least:
            self.pull_(models, lam, held)


class Mean(Rule):
    """The weighted mean: `SharedNetwork` and SoftPull as in the papers."""

    needs_single_updates = False
    least = 1

    def merge(self, updates: list[Tensors], weights: list[float]) -> Tensors:
        mean = RunningMean(updates[0])
        for update, weight in zip(updates, weights, strict=True):
            mean.add(update, weight)
        return mean.take()

    def pull_(self, models: list[Tensors], lam: float, held: Set[str]) -> None:
        soft_pull_(models, lam, held)

    def collector(self, template: Tensors, spare: Tensors | None = None) -> Collector:
        return RunningMean(template, spare=spare)


class _ByEntry(Rule):
    """A trimmed mean of each entry."""

    @abstractmethod
    def trim(self, count: int) -> int:
        """How many of so many values are left out at each end."""

    def shares(self, weights: list[float]) -> list[float]:
        """What each value that is left weighs."""
        return weights

    def merge(self, updates: list[Tensors], weights: list[float]) -> Tensors:
        merged = {key: torch.empty_like(v).view(-1) for key, v in updates[0].items() if v.is_floating_point()}
        trim = self.trim(len(updates))
        for key, place, values in robust.pieces(updates):
            shares = torch.tensor(self.shares(weights), dtype=values.dtype)
            merged[key][place] = robust.trimmed_mean(values, shares, trim)
        return {key: flat.view(updates[0][key].shape) for key, flat in merged.items()}

    def pull_(self, models: list[Tensors], lam: float, held: Set[str]) -> None:
        trim = self.trim(len(models) - 1)
        for key, place, values in robust.pieces(models, held):
            for model, others in zip(models, robust.trimmed_means_of_others(values, trim), strict=True):
                model[key].view(-1)[place].lerp_(others, 1 - lam)


class TrimmedMean(_ByEntry):
    """Without the f lowest and the f highest values of each entry; f = 0 is the mean."""

    @property
    def least(self) -> int:
        return 2 * self.outliers + 1

    def trim(self, count: int) -> int:
        return self.outliers


class Median(_ByEntry):
    """The middle value of each entry."""

    least = 3  # of two it is the mean

    def trim(self, count: int) -> int:
        return (count - 1) // 2

    def shares(self, weights: list[float]) -> list[float]:
        return [1.0] * len(weights)


class _BySite(Rule):
    """A mean of whole updates, by shares that follow from their distances."""

    @abstractmethod
    def shares(self, distances: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(K,) shares that add up to 1."""

    def merge(self, updates: list[Tensors], weights: list[float]) -> Tensors:
        shares = self.shares(robust.squared_distances(updates), torch.tensor(weights, dtype=torch.float64)).tolist()
        mean = RunningMean(updates[0])
        for update, share in zip(updates, shares, strict=True):
            if share:
                mean.add(update, share)
        return mean.take()

    def pull_(self, models: list[Tensors], lam: float, held: Set[str]) -> None:
        distances, count = robust.squared_distances(models, held), len(models)
        shares = torch.zeros(count, count, dtype=torch.float64)
        for k in range(count):
            others = torch.tensor([j for j in range(count) if j != k])
            equal = torch.ones(count - 1, dtype=torch.float64)
            shares[k, others] = self.shares(distances[others[:, None], others], equal)
        weighted_pull_(models, lam, shares, held)


class MultiKrum(_BySite):
    """The mean of the K - f updates that lie closest together."""

    @property
    def least(self) -> int:
        return 2 * self.outliers + 3

    def shares(self, distances: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return robust.multi_krum(distances, weights, self.outliers)


class GeometricMedian(_BySite):
    """The point with the smallest sum of distances."""

    least = 3  # of two, every point between them

    def shares(self, distances: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return robust.geometric_median(distances)


RULES: dict[str, type[Rule]] = {
    "mean": Mean,
    "trimmed_mean": TrimmedMean,
    "median": Median,
    "multi_krum": MultiKrum,
    "geometric_median": GeometricMedian,
}
MEAN = Mean(0)


def rule_of(settings: JobSettings) -> Rule:
    """The rule of a job."""
    return RULES[settings.aggregation](settings.outliers)


class KeptUpdates:
    """The updates of a round, kept until it closes, for rules that need all of them at once.

    Args:
        template: says which entries there are, and their dtypes.
        rule: combines them.
    """

    def __init__(self, template: Tensors, rule: Rule):
        self._dtypes = {key: value.dtype for key, value in template.items()}
        self._rule = rule
        self._updates: list[Tensors] = []
        self._weights: list[float] = []

    @property
    def count(self) -> int:
        return len(self._updates)

    def add(self, tensors: Tensors, weight: float, index: int = 0) -> None:
        """Keeps one update with its weight; a site's filter may have changed its dtypes."""
        self._updates.append({key: _cast(tensors[key], dtype) for key, dtype in self._dtypes.items()})
        self._weights.append(weight)

    def take(self) -> Tensors:
        """The floats of the combined update. Ends this round."""
        updates, self._updates = self._updates, []
        weights, self._weights = self._weights, []
        return self._rule.merge(updates, weights)

    def added_to(self, old: Tensors) -> Tensors:
        """old + the combined update, as new tensors; with fewer updates than the rule needs, old. Ends this round."""
        new = copy(old)
        if self.count >= self._rule.least:
            whole = {
                key: torch.stack([update[key] for update in self._updates]).median(dim=0).values
                for key, dtype in self._dtypes.items()
                if not dtype.is_floating_point
            }
            add_(new, whole | self.take())
        self._updates, self._weights = [], []
        return new


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point and value.is_floating_point():
        value = value.round()
    return value if value.dtype == dtype else value.to(dtype)
