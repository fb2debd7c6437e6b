"""SCAFFOLD: a global track whose sites correct their drift with control variates.

    site k:  y <- w;  for every batch  y <- y - eta (g(y) + c - c_k)
             c_k+ = c_k - c + (w - y) / (steps * eta)                          (option II)
    server:  w <- w + sum_k (n_k / n) (y_k - w)
             c <- sum_k (n_k / n) c_k            with c_k+ for the sites that answered, and c_k for the others

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, Algorithm 1, with a
server step of 1. The paper weights all sites equally, in w and in c; here both go by images, as our FedAvg does: with
c - c_k every site steps along c, so c has to be the gradient of what is minimised. c and all c_k start at zero, so
round 1 is FedAvg. The wire carries 2 w each way: w and c down, y_k - w and c_k+ - c_k up.

With `optimizer: sgd` g is the gradient, and c_k+ the mean of the site's gradients. With `adam`, the default, g is the
step that Adam makes of the gradient and c_k+ the mean of these: c - c_k is added behind Adam, not in front, because it
is measured in Adam's steps, which have size 1 in every weight. Gradients do not: in a run of 25 rounds on three small
synthetic sites their median was 9e-5, and that of c_k was 0.17. In front of Adam, c - c_k swamped them and the Dice
stayed at 0.22, against 0.49 behind it and 0.52 for FedAvg. NVFlare's `PTScaffoldHelper` adds it behind, too.

Only float parameters have controls; buffers travel and are averaged as in FedAvg. eta is the round's, as the job's
schedule makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch.nn import functional

from fedsm.core.errors import UserError
from fedsm.core.state import RunningMean, copy, part, prefixed, without
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.tracks.base import TRAIN, Phase, Report
from fedsm.tracks.fedavg import AveragedServer
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.segmentation import SegmentationClient

_CONTROL, _IMAGES = "control", "images"


def _controlled(net: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in net.named_parameters() if p.is_floating_point()}


class ScaffoldOptions(TrackOptions):
    """Options of `scaffold`."""

    optimizer: Literal["adam", "sgd"] = Field(default="adam", description="How a gradient becomes a step.")


class ScaffoldClient(SegmentationClient):
    """Trains the received model with corrected steps, and keeps c_k on the site's disk.

    A site without its c_k (a new disk) starts with zero again. The server's c, a sum of changes, keeps the lost c_k's
    share n_k / n for good: it is then no longer the mean of the c_k, and every site's correction is off by that.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        if self.options["optimizer"] == "sgd":
            self.learner.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.settings.lr)
        self._shared: Tensors = {}  # c
        self._own = self._zeros()  # c_k
        self._steps = 0

    @property
    def _eta(self) -> float:
        """The learning rate of the round."""
        return self.settings.lr * self.site.rate_factor

    def _zeros(self) -> Tensors:
        return {name: torch.zeros_like(p, device="cpu") for name, p in _controlled(self.net).items()}

    def receive(self, phase: Phase, payload: Tensors) -> None:
        """Takes w and c; after the last round there is no c, because nothing is trained any more."""
        super().receive(phase, without(_CONTROL, payload))
        self._shared = part(_CONTROL, payload)

    def begin(self, n_images: int, training_images: Iterable[Batch] = ()) -> None:
        self._steps = 0
        self._corrected = _controlled(self.net)
        self._corrections = [
            (self._shared[name] - self._own[name]).to(p.device, p.dtype) for name, p in self._corrected.items()
        ]

    def step(self, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor | None:
        loss = super().step(images, labels, rows)
        with torch.no_grad():
            for parameter, correction in zip(self._corrected.values(), self._corrections, strict=True):
                parameter.sub_(correction, alpha=self._eta)
        self._steps += 1
        return loss

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        """y_k - w and c_k+ - c_k; from here on c_k is c_k+."""
        moved = super().send(phase, training_images)
        if phase != TRAIN:
            return moved
        scale = 1 / (self._steps * self._eta)
        changes = {name: -moved[name] * scale - self._shared[name] for name in self._own}
        self._own = {name: own + changes[name] for name, own in self._own.items()}
        return moved | prefixed(_CONTROL, changes)

    def state(self) -> Tensors:
        return prefixed("adam", super().state()) | prefixed(_CONTROL, copy(self._own))

    def load_state(self, state: Tensors) -> None:
        super().load_state(part("adam", state))
        self._own = part(_CONTROL, state) or self._zeros()


class ScaffoldServer(AveragedServer):
    """The shared network and its control c.

    Sites that did not answer a round, or were not asked in it (`fraction`), take no part in w, and their share of c
    stays as it was: c remains the mean of the c_k of all sites that have ever answered, each weighted by its images at
    that time. A site that has not answered yet has no share. An answer that came too late, or was refused or clipped,
    breaks this: the site keeps its c_k+, the server never added it, and c is off by (n_k / n) (c_k+ - c_k) from then
    on. So no `aggregation` but the mean is taken: a rule that leaves answers out would do this in every round.
    """

    against_rules = "the control c is the mean of the c_k of all sites, also of those that a rule would leave out"
    update_private = False  # c is a second mean, which would need noise of its own

    def __init__(self, *args: Any):
        super().__init__(*args)
        with torch.device("meta"):  # only the names matter: no weights, no random numbers
            names = list(_controlled(build_unet(self.settings.task)))
        self.controls = {name: torch.zeros_like(self.weights[name]) for name in names}
        self.images = torch.zeros(len(self.sites))  # n_k of the sites that have a share of c
        self._open()

    def _open(self) -> None:
        self._changes = RunningMean(self.controls)
        self._shared_by = float(self.images.sum())

    def payload(self, phase: Phase, site: str) -> Tensors:
        return self.weights | prefixed(_CONTROL, self.controls) if phase == TRAIN else self.weights

    def expects(self, phase: Phase) -> Tensors:
        return self.weights | prefixed(_CONTROL, self.controls) if phase == TRAIN else {}

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        super().accept(phase, site, without(_CONTROL, tensors), weight)
        k = self.sites.index(site)
        if self.images[k] == 0:
            self.images[k] = weight
        self._changes.add(part(_CONTROL, tensors), float(self.images[k]))

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        warnings = super().close(phase, reports)
        if phase != TRAIN:
            return warnings
        if self._changes.count:
            n, answered = float(self.images.sum()), self._changes.weight
            mean = self._changes.take()
            self.controls = {
                name: (self._shared_by / n) * c + (answered / n) * mean[name] for name, c in self.controls.items()
            }
        self._open()
        return warnings

    def files(self) -> dict[str, Tensors]:
        return super().files() | {f"{self.name}.controls": self.controls, f"{self.name}.images": {_IMAGES: self.images}}

    def load_files(self, files: dict[str, Tensors]) -> None:
        super().load_files(files)
        self.controls = files[f"{self.name}.controls"]
        self.images = files[f"{self.name}.images"][_IMAGES]
        self._open()

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site has no share of c before it has answered."""
        if images := files.get(f"{self.name}.images"):
            images[_IMAGES] = functional.pad(images[_IMAGES], (0, len(new)))
        return []

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        raise UserError(
            f"SCAFFOLD's control c holds a share of site {site!r} that only the site knows, so a run cannot go on"
            " without it",
            remedy="start a new run without the site",
        )

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """Never called: no site can leave."""
        return model
