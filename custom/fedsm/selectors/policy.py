"""How a super model uses its selector: the paper's Algorithm 2, and what was added to it.

    foreign   u(x) > delta        h_g                               u: distance to the nearest site, 1 is usual there
    unsure    max yhat <= gamma   h_g
    else                          (1 - share) h_k + share h_g,      k = argmax yhat
    flip      every h(x) is the mean of h(x) and of h(mirror image of x), mirrored back

h_g is the global network, h_k the personal one of site k. Without delta, with share 0 and without the flip it is
Algorithm 2. All four values are chosen on validation images (`fedsm.server.policy_choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_DELTA, is_number, shown
from fedsm.core.settings import JobSettings


@dataclass(frozen=True)
class Policy:
    """One way to use a selector.

    Attributes:
        gamma: threshold of Algorithm 2; None: the selector has none, or there is no selector.
        delta: largest distance at which an image still counts as one of a known site; None: no limit.
        share: the global model's share beside a personal one.
        flip: whether the mirror image is predicted as well.
    """

    gamma: float | None = None
    delta: float | None = None
    share: float = 0.0
    flip: bool = False

    @property
    def networks(self) -> int:
        """How many times a U-Net runs for one image, which is what a prediction costs."""
        return (2 if self.share else 1) * (2 if self.flip else 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a manifest holds them."""
        return asdict(self)

    def changed(self, **values: Any) -> Policy:
        """The same with other values; None: as it is."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})


def read_policy(values: Mapping[str, Any], where: str) -> Policy:
    """A policy from a manifest, or from the server's task. A super model of version 0.1 has gamma only.

    Raises:
        UserError: a value that is out of range; `where` says whose.
    """
    policy = Policy(**{name: values[name] for name in asdict(Policy()) if values.get(name) is not None})
    problem = policy_problem(policy)
    if problem:
        raise UserError(f"{where}: {problem}", public="refused: a threshold out of range")
    return policy


def policy_problem(policy: Policy) -> str | None:
    """What is wrong with the values of a policy, or None."""
    if policy.gamma is not None and not is_number(policy.gamma, 0, 1):
        return f"gamma must be in [0, 1], got {shown(policy.gamma)}"
    if policy.delta is not None and not is_number(policy.delta, 0, MOST_DELTA):
        return f"delta must be in [0, {MOST_DELTA:g}], got {shown(policy.delta)}"
    if not is_number(policy.share, 0, 1):
        return f"share must be in [0, 1], got {shown(policy.share)}"
    return None if isinstance(policy.flip, bool) else f"flip must be true or false, got {shown(policy.flip)}"


def shares_of(settings: JobSettings) -> list[float]:
    """The shares of the global model that sites try."""
    return [0.0] if settings.selection == "algorithm2" else list(settings.shares)


def flips_of(settings: JobSettings) -> list[bool]:
    """Whether sites try mirror images."""
    return [False, True] if settings.selection == "best" and settings.tta else [False]


def deltas_of(settings: JobSettings) -> list[float]:
    """The distances that sites try."""
    return [] if settings.selection == "algorithm2" else sorted(settings.deltas)


def is_foreign(distance: torch.Tensor | None, delta: float | None) -> torch.Tensor | None:
    """(B,) whether an image is farther from every site than `delta`; None where there is no limit or no distance."""
    return None if distance is None or delta is None else distance > delta


def probabilities_of(net: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """(B, L, H, W) probabilities of a network; a NaN in its output counts as probability 0."""
    return net(images).sigmoid().nan_to_num(0.0)


def mirrored_too(
    net: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, plain: torch.Tensor
) -> torch.Tensor:
    """The mean of a network's probabilities (`plain`) and of those of the mirror images, mirrored back."""
    return (plain + probabilities_of(net, images.flip(-1)).flip(-1)) / 2
