"""FedRep: a shared representation, and a head of its own at every site.

    site k:  h_k   <- Adam(h_k, grad_h F_k(h_k, phi))           head first: phi is fixed as received
             phi_k <- Adam(phi, grad_phi F_k(h_k, phi))         then the body: the new h_k is fixed
    server:  phi   <- sum_k (n_k / n) phi_k                     over the sites that answered

Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021, Algorithm 1.

The head h of MONAI's U-Net is its outermost up-block (`model.2`): the transposed convolution from the last feature
maps (with three or more levels twice the first level's channels, at half the resolution) to one map for each label, its
norm and activation, and, with residual units, the convolution of the labels' maps after it.
The body phi is everything else, encoder and decoder.

The head takes `head_steps` steps on each batch of one walk over the training images, without augmentation and in their
order. Then the body takes a step on each batch of the round's pass, as many as with other methods. So a round costs
one more pass, but backwards only through the head. An abort takes effect only after that walk.

Where this differs from the paper: Adam instead of SGD, one for both parts, its moments at the site across rounds; sites
weigh by their images, not equally; the paper walks the images several times for the head. Batch norm's running
statistics in the body follow every forward pass, those of the head's steps too; instance norm (the default) has none.

The wire carries phi each way, and once, after the last round, the whole network up, since only the site has its head.
phi is 6,503,360 of the 6,505,828 bytes of the default U-Net with two labels. With head_steps = 0 heads stay as the seed
made them, and the body is trained as with FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from pydantic import Field

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_STEPS
from fedsm.core.settings import JobSettings
from fedsm.core.state import subtract
from fedsm.core.tensors import Batch, Tensors
from fedsm.tracks.base import TRAIN, Phase
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.rules import rule_of
from fedsm.tracks.shared_and_personal import SharedAndPersonalServer
from fedsm.tracks.shared_network import SharedNetwork
from fedsm.tracks.site_personal import SitePersonalClient

HEAD = "model.2."  # how its entries begin: MONAI's U-Net is Sequential(down, skip connection, up), nested in the middle


class FedRepOptions(TrackOptions):
    """Options of `fedrep`."""

    head_steps: int = Field(
        default=1, ge=0, le=MOST_STEPS, description="Steps of the head on each batch, before the body learns."
    )


class FedRepClient(SitePersonalClient):
    """Puts the received body under its own head: that network is scored, remembered as best, and trained.

    A site without its state (a new disk, or one that joined later) starts its head anew, as in round 1. After the last
    round the site gets the last body, which may still give the best network.
    """

    private = False  # the head walks all images in their order

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.received: Tensors = {}

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self.received = payload
        self.net.load_state_dict(self.net.state_dict() | payload)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._train_only(head=True)
        for images, labels in training_images:
            for _ in range(self.options["head_steps"]):
                self.step(images, labels)
        self._train_only(head=False)

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        if phase == TRAIN:
            return subtract(self.net.state_dict(), self.received)
        return super().send(phase, training_images)

    def _train_only(self, head: bool) -> None:
        """From now on `step` moves only the head, or only the body: Adam leaves alone what has no gradient."""
        self.learner.optimizer.zero_grad(set_to_none=True)
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad_(name.startswith(HEAD) == head)


class FedRepServer(SharedAndPersonalServer):
    """Averages the bodies. Sites that did not answer a round take no part, and put the newest body under a head that is
    as old as their last round."""

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        super().check(settings, options, n_sites)
        if settings.task.network:
            raise UserError(
                "fedrep's head is the last up-block of the U-Net, and the task names another network",
                remedy="use another personal model, or leave `network` out",
            )

    def __init__(self, *args: Any):
        super().__init__(*args)
        body = {key: value for key, value in self.weights.items() if not key.startswith(HEAD)}
        self.network = SharedNetwork(body, self.sites, rule_of(self.settings))

    def payload(self, phase: Phase, site: str) -> Tensors:
        """The body, also after the last round: a head alone is not a network."""
        return self.weights

    def held(self) -> Set[str]:
        return {key for key in self.delivered.first if key.startswith(HEAD)}
