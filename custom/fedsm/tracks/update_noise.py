"""Privacy of whole sites: every site's update is clipped, and the server adds noise to their mean.

    d_k  <- d_k min(1, C / |d_k|)                               |.| over all entries of the network
    w    <- w + sum_k p_k d_k + N(0, (z C max_k p_k)^2 I)        p_k: the sites' shares of the average, sum p_k = 1

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR 2018, without its
amplification by sampling: that needs a secret draw, and with `fraction` everybody can know who is asked. A round
without a site tells nothing of it, so only its own rounds count (`server/update_loss.py`). One site moves the mean by
at most C max_k p_k, so a round is one Gaussian mechanism with the multiplier z, and R rounds are R of them. Neighbours
are two runs in one of which a site sends zeros: that it took part, and its number of images, are no secret. It protects
against those who see the models, other sites and users of the super model, not against the server, which sees every
update.

Every site's own network is in a super model with personal ones, and no noise on a mean hides it. So this is for methods
that share one network.
"""

from __future__ import annotations

import numpy as np
import torch

from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import accountants
from fedsm.core.settings import UpdatePrivacy
from fedsm.core.state import scaled
from fedsm.core.tensors import Tensors


def check_network(template: Tensors) -> None:
    """Refuses a network with counters, which are taken from one site as they are.

    Raises:
        UserError: with the remedy.
    """
    if whole := [key for key, value in template.items() if not value.is_floating_point()]:
        raise UserError(
            f"update_privacy cannot hide counters such as {whole[0]!r}, which batch norm keeps",
            remedy="set task.unet.norm to INSTANCE or GROUP",
        )


class UpdateNoise:
    """Clips the updates of a round, and adds the noise to what their mean has made.

    Args:
        privacy: the job's `update_privacy`.

    Raises:
        UserError: Opacus is missing, which says what it costs.
    """

    def __init__(self, privacy: UpdatePrivacy):
        accountants()
        self._privacy = privacy
        self._weights: list[float] = []
        self._rng = np.random.default_rng()  # seeded by the operating system: not by the job's seed, which all know

    def clipped(self, update: Tensors, weight: float) -> Tensors:
        """A site's update, scaled down to the clip norm if it is longer."""
        self._weights.append(weight)
        norm = torch.stack([v.double().norm() for v in update.values()]).norm().item()
        return scaled(update, self._privacy.clip / norm) if norm > self._privacy.clip else update

    def add_(self, weights: Tensors) -> None:
        """Adds the noise of a round to the new weights, in place; nothing where nobody answered."""
        if not self._weights:
            return
        share = max(self._weights) / sum(self._weights)
        deviation = self._privacy.noise_multiplier * self._privacy.clip * share
        self._weights = []
        for value in weights.values():
            noise = self._rng.standard_normal(tuple(value.shape), dtype=np.float32)
            value += torch.from_numpy(np.asarray(noise)).to(value.dtype) * deviation
