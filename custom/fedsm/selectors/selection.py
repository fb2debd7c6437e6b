"""From a selector's probabilities to a model for each image, or to the weights of several models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.nn import functional

from fedsm.core.errors import UserError
from fedsm.selectors.inference import MIXTURE, THRESHOLD, blend, select
from fedsm.selectors.policy import Policy, Share, is_foreign


class Selection(NamedTuple):
    """The selector's result for a batch; what it cannot tell is None.

    Attributes:
        choices: (B,) the model of each image: 0 is the global one, k + 1 the personal one of site k. For a mixture
            its heaviest part.
        yhat: (B, K) probabilities of the sites; (B, K + 1) for FedSM-extra and ensemble, the global model first.
        distance: (B,) distance to the nearest site's images: how unusual an image is (`statistics`).
        foreign: (B,) whether that is more than the policy's delta for that site.
    """

    choices: torch.Tensor
    yhat: torch.Tensor | None = None
    distance: torch.Tensor | None = None
    foreign: torch.Tensor | None = None

    def rows(self, rows: slice) -> Selection:
        """Some images of the batch."""
        return Selection(self.choices[rows], *(None if values is None else values[rows] for values in self[1:]))

    @staticmethod
    def cat(parts: Sequence[Selection]) -> Selection:
        """Several batches as one."""
        choices, *rest = zip(*parts, strict=True)
        return Selection(torch.cat(choices), *map(_cat, rest))


def _cat(parts: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    """The parts as one; a value that the selector does not give is None in all of them."""
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def choose(yhat: torch.Tensor, rule: str, gamma: float | None, foreign: torch.Tensor | None = None) -> torch.Tensor:
    """Chooses a model for each image.

    Args:
        yhat: (B, K) or (B, K + 1) probabilities.
        rule: how they are read; see `fedsm.selectors.inference`.
        gamma: the threshold, for a rule that has one.
        foreign: (B,) images that go to the global model whatever yhat says; None: none.

    Returns:
        (B,) indices of models, 0 is the global one.
    """
    if rule != THRESHOLD:
        return yhat.argmax(1)
    assert gamma is not None, "a threshold rule has a threshold"
    chosen = select(yhat, gamma)
    return chosen if foreign is None else torch.where(foreign, 0, chosen)


def apply_policy(yhat: torch.Tensor, distance: torch.Tensor | None, rule: str, policy: Policy) -> Selection:
    """The models of a batch by a policy.

    Raises:
        UserError: the policy has deltas or shares of other sites than the selector's.
    """
    for name, value in (("delta", policy.delta), ("share", policy.share)):
        if isinstance(value, tuple) and len(value) != yhat.shape[1]:
            raise UserError(f"{name} has {len(value)} values for {yhat.shape[1]} sites", public=f"refused: {name}")
    foreign = is_foreign(distance, policy.delta, yhat.argmax(1))
    return Selection(choose(yhat, rule, policy.gamma, foreign), yhat, distance, foreign)


def by_majority(selection: Selection, rule: str | None, slices: Sequence[int]) -> Selection:
    """One model for each volume: the one that most of its slices select.

        c  =  argmax_m ( #{i : c_i = m},  sum_i yhat_im )       i: the slices of the volume, c_i: what slice i selects

    Of models with equally many slices it is the one with the larger sum of yhat over the volume. A selector that knows
    sites only gives the global model none, so of equals it is a site's. A volume is foreign if most of its slices are:
    these select the global model, so it gets that one.

    Args:
        selection: slice by slice, one volume after the other.
        rule: how the selector is read. A mixture selects no model, so it stays as it is.
        slices: how many each volume has; a picture is one.
    """
    if selection.yhat is None or rule == MIXTURE:
        return selection
    yhat = functional.pad(selection.yhat, (1, 0)) if rule == THRESHOLD else selection.yhat
    choices, foreign = selection.choices.clone(), None if selection.foreign is None else selection.foreign.clone()
    ends = [0, *accumulate(slices)]
    for rows in map(slice, ends, ends[1:]):
        votes = torch.bincount(selection.choices[rows], minlength=yhat.shape[1])
        choices[rows] = torch.where(votes == votes.max(), yhat[rows].sum(0), -1.0).argmax()
        if foreign is not None:
            foreign[rows] = 2 * foreign[rows].sum() > len(foreign[rows])
    return selection._replace(choices=choices, foreign=foreign)


def weights_of(selection: Selection, models: int, rule: str | None, policy: Policy, soft: bool = False) -> torch.Tensor:
    """(B, models) weights that sum to 1.

    Args:
        selection: the selector's result.
        models: how many models there are.
        rule: how the selector is read; None: one model was named for every image.
        policy: its gamma is used by soft selection, its share where a personal model was chosen.
        soft: soft selection: the two most probable models share an image.
    """
    if rule == MIXTURE:
        assert selection.yhat is not None
        return selection.yhat
    if soft and rule == THRESHOLD:
        assert selection.yhat is not None and policy.gamma is not None
        weights = blend(selection.yhat, policy.gamma)
        if selection.foreign is not None:
            weights[selection.foreign] = functional.one_hot(torch.tensor(0), models).float()
        return weights
    weights = functional.one_hot(selection.choices, models).float()
    return mixed_with_global(weights, policy.share) if rule == THRESHOLD else weights


def mixed_with_global(weights: torch.Tensor, share: Share) -> torch.Tensor:
    """(B, M) weights, of which the global model (column 0) gets its share: (1 - share_k) w_k, and the rest for it."""
    of_model = shares_by_model(share, weights.shape[1]).to(weights)
    mixed = weights * (1 - of_model)
    mixed[:, 0] += weights @ of_model
    return mixed


def shares_by_model(share: Share, models: int) -> torch.Tensor:
    """(M,) what the global model takes of each model's weight; nothing of its own."""
    shares = torch.zeros(models)
    shares[1:] = torch.tensor(share)
    return shares
