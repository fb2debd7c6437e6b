"""How a super model uses its selector: the paper's Algorithm 2, and what was added to it.

    foreign   u(x) > delta_k      h_g                               u: distance to the nearest site k, 1 is usual there
    unsure    max yhat <= gamma   h_g
    else                          (1 - share_k) h_k + share_k h_g,  k = argmax yhat
    flip      every h(x) is the mean of h(x) and of h(mirror image of x), mirrored back
    majority  all slices of a volume get the model that most of them select (`fedsm.selectors.selection.by_majority`)

h_g is the global network, h_k the personal one of site k. Without delta, with share 0, without the flip and slice by
slice it is Algorithm 2. All values are chosen on validation images (`fedsm.server.policy_choice`), delta_k and share_k
by the site k whose images they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_DELTA, is_number, shown
from fedsm.core.settings import JobSettings

Delta = float | tuple[float | None, ...] | None
Share = float | tuple[float, ...]


@dataclass(frozen=True)
class Policy:
    """One way to use a selector.

    Attributes:
        gamma: threshold of Algorithm 2; None: the selector has none, or there is no selector.
        delta: largest distance at which an image still counts as one of the nearest site's: one number for each site in
            index order (None: no limit there), or one for all; None: no limit.
        share: the global model's share beside a personal one: one number for each site in index order, or one for all.
        flip: whether the mirror image is predicted as well.
        majority: whether all slices of a volume get one model, the one that most of them select.
    """

    gamma: float | None = None
    delta: Delta = None
    share: Share = 0.0
    flip: bool = False
    majority: bool = False

    @property
    def networks(self) -> int:
        """How many times a U-Net runs for one image, which is what a prediction costs."""
        return (2 if any(each(self.share)) else 1) * (2 if self.flip else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a manifest holds them."""
        return asdict(self)

    def changed(self, **values: Any) -> Policy:
        """The same with other values; None: as it is."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})


def read_policy(values: Mapping[str, Any], where: str) -> Policy:
    """A policy from a manifest, or from the server's task. A super model of version 0.1 has gamma only, one of an early
    0.2 has one delta and one share for all sites, and selects slice by slice.

    Raises:
        UserError: a value that is out of range; `where` says whose.
    """
    given: dict[str, Any] = {name: values[name] for name in asdict(Policy()) if values.get(name) is not None}
    for name, value in given.items():
        given[name] = tuple(value) if isinstance(value, list) else value  # as JSON has it
    policy = Policy(**given)
    problem = policy_problem(policy)
    if problem:
        raise UserError(f"{where}: {problem}", public="refused: a threshold out of range")
    return policy


def policy_problem(policy: Policy) -> str | None:
    """What is wrong with the values of a policy, or None."""
    if policy.gamma is not None and not is_number(policy.gamma, 0, 1):
        return f"gamma must be in [0, 1], got {shown(policy.gamma)}"
    for delta in each(policy.delta):
        if delta is not None and not is_number(delta, 0, MOST_DELTA):
            return f"delta must be in [0, {MOST_DELTA:g}], got {shown(delta)}"
    for share in each(policy.share):
        if not is_number(share, 0, 1):
            return f"share must be in [0, 1], got {shown(share)}"
    for name, value in (("flip", policy.flip), ("majority", policy.majority)):
        if not isinstance(value, bool):
            return f"{name} must be true or false, got {shown(value)}"
    return None


def each(value: Delta) -> tuple[float | None, ...]:
    """The values of the sites, or the one for all of them."""
    return value if isinstance(value, tuple) else (value,)


def shares_of(settings: JobSettings) -> list[float]:
    """The shares of the global model that sites try."""
    return [0.0] if settings.selection == "algorithm2" else list(settings.shares)


def flips_of(settings: JobSettings) -> list[bool]:
    """Whether sites try mirror images."""
    return [False, True] if settings.selection == "best" and settings.tta else [False]


def tries_majority(settings: JobSettings) -> bool:
    """Whether sites that have volumes try one model for a whole volume."""
    asked = settings.volume_selection
    return asked == "majority" or (asked == "best" and settings.selection == "best")


def deltas_of(settings: JobSettings) -> list[float]:
    """The distances that sites try."""
    return [] if settings.selection == "algorithm2" else sorted(settings.deltas)


def is_foreign(distance: torch.Tensor | None, delta: Delta, nearest: torch.Tensor) -> torch.Tensor | None:
    """(B,) whether an image is farther from the nearest site than that site's delta.

    Args:
        distance: (B,) to the nearest site; None of a selector that knows none.
        delta: a policy's.
        nearest: (B,) index of the nearest site.

    Returns:
        None where there is no limit or no distance.
    """
    if distance is None or delta is None:
        return None
    if not isinstance(delta, tuple):
        return distance > delta
    limits = torch.tensor([torch.inf if limit is None else limit for limit in delta], device=distance.device)
    return distance > limits[nearest]


def in_words(value: float | Sequence[float | None] | None) -> str:
    """A delta or share: `1.5`, or `1.5, none, 2` for the sites in index order."""
    values = value if isinstance(value, Sequence) else [value]
    return ", ".join("none" if value is None else f"{value:g}" for value in values)


def probabilities_of(net: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """(B, L, H, W) probabilities of a network; a NaN in its output counts as probability 0."""
    return net(images).sigmoid().nan_to_num(0.0)


def mirrored_too(
    net: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, plain: torch.Tensor
) -> torch.Tensor:
    """The mean of a network's probabilities (`plain`) and of those of the mirror images, mirrored back."""
    return (plain + probabilities_of(net, images.flip(-1)).flip(-1)) / 2
