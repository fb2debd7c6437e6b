"""The selector without training: Gaussian classes from each site's sums.

With d(x) a descriptor of an image, site k sends once n_k, s_k = sum d and Q_k = sum d d^T. The server forms

    mu_k  = s_k / n_k
    Sigma = sum_k (Q_k - n_k mu_k mu_k^T) / (n - K)           pooled within-class covariance
    R     = (1 - a) D^-1 Sigma D^-1 + a I,  D = diag(Sigma)^1/2    shrunk correlation
    m_k   = z^T R^-1 z,  z = D^-1 (d(x) - mu_k)               squared Mahalanobis distance
    yhat  = softmax(-m / 2)

It is exactly what pooling all images would give, so there is no drift; a site joins or leaves by adding or
subtracting its sums; min_k m_k, in units of what is usual at that site (`typical_distances`), says how foreign an image
is. Sums that no images can have are refused (`possible_sums`), a site whose images scatter far more widely than the
others' is left out of Sigma, and none weighs more there than `max_share` allows (`covariance_weights`).

The descriptors `image` and `image+random` need no training: their sums go up before round 1 and a is chosen on
validation data after the last. `encoder` uses the encoder of the last global model: its sums go up after the last
round, when no task is left in which a could be chosen, so a is fixed (`ENCODER_SHRINKAGE`). The super model holds the
best round of the global model; the encoder that the sums belong to is kept with the selector.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from fedsm.core.errors import UserError
from fedsm.core.limits import is_fraction
from fedsm.core.settings import JobSettings
from fedsm.core.shares import trimmed_mean
from fedsm.core.state import prefixed
from fedsm.core.tensors import Batch, Tensors
from fedsm.selectors.covariance_weights import covariance_weights
from fedsm.selectors.descriptor import (
    DESCRIPTORS,
    ENCODER,
    IMAGE,
    build_descriptor,
    descriptor_values,
    image_range,
    image_scale,
    length_of,
)
from fedsm.selectors.gaussian import (
    StatisticsSelector,
    classes_of,
    flat_sums,
    gaussian_classes,
    sums_by_site,
    sums_template,
    typical_distances,
)
from fedsm.selectors.network_features import encoder_weights
from fedsm.selectors.possible_sums import sums_problem
from fedsm.selectors.private_sums import PrivateSums
from fedsm.selectors.releases import SumsKey, exact_sums
from fedsm.selectors.similarity import squared_distances
from fedsm.tracks.base import DELIVER, REGISTER, TRAIN, ClientTrack, Phase, Report, ServerTrack
from fedsm.tracks.options import TrackOptions
from fedsm.tracks.segmentation import SegmentationClient

SHRINKAGES = (0.02, 0.05, 0.1)
# The safest of these: the encoder gives more numbers than there are images. With a trained U-Net on the nuclei data
# (three splits) all three, and 0.3 and 0.5, gave the same accuracy.
ENCODER_SHRINKAGE = 0.1

log = logging.getLogger(__name__)


class StatisticsOptions(TrackOptions):
    """Options of `selector_statistics`."""

    descriptor: Literal["image", "image+random", "encoder"] = Field(
        default="image",
        description="What describes an image: numbers of the image itself, these and those of a fixed random network,"
        " or the encoder of the last global model.",
    )


class StatisticsClient(ClientTrack):
    """Sends n, the sum and the sum of outer products of its training images' descriptors, once.

    A site counts the different sums that it sends (`releases`), and may make them differentially private
    (`private_sums`).
    """

    sums = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._descriptor: str = self.options["descriptor"]
        self._payload: Tensors = {}
        if isinstance(self.site.release, PrivateSums) and self._descriptor != IMAGE:
            message = f"the site's statistics_privacy works with the descriptor {IMAGE!r}, not {self._descriptor!r}"
            remedy = "ask for another job, or take it out of fedsm_site.yaml"
            raise UserError(message, remedy=remedy, public=message)

    def send(self, phase: Phase, training_images: Iterable[Batch] = ()) -> Tensors:
        """The sums, before round 1; those of the encoder after the last round, when its final weights are there."""
        if phase == REGISTER and self._descriptor != ENCODER:
            return self._sums(training_images, {})
        if phase == DELIVER and self._descriptor == ENCODER:
            track = self.site.tracks["global"]
            assert isinstance(track, SegmentationClient)  # `StatisticsServer.check` holds it
            return self._sums(training_images, encoder_weights(self.settings.task, track.received))
        return {}

    def _sums(self, batches: Iterable[Batch], encoder: Tensors) -> Tensors:
        describe = build_descriptor(self._descriptor, self.settings, encoder)
        key = SumsKey(descriptor_values(self._descriptor, self.settings), encoder)
        rows = torch.cat([describe(images) for images in key.see(images for images, _ in batches)])
        if self.site.release is None:
            return exact_sums(rows)
        return self.site.release(rows, self.settings.task.channels, key.hexdigest())

    def receive(self, phase: Phase, payload: Tensors) -> None:
        self._payload = payload

    def validate(self, phase: Phase, batches: Iterable[Batch]) -> Report:
        """Accuracy for each shrinkage, after the last round; during training there is nothing to score."""
        if not self._payload or self._descriptor == ENCODER:
            return {}
        selectors = [
            StatisticsSelector(
                self.settings, self.site.n_sites, self._payload | {"shrinkage": torch.tensor(a)}, self.site.device
            )
            for a in SHRINKAGES
        ]
        hits = [0] * len(selectors)
        images = 0
        for x, _ in batches:
            images += len(x)
            rows = selectors[0].describe(x)
            for i, selector in enumerate(selectors):
                hits[i] += int((selector.distances_of(rows).argmin(1) == self.site.index).sum())
        accuracies = [h / images for h in hits]
        return {"score": max(accuracies), "images": images, "accuracies": accuracies}


class StatisticsServer(ServerTrack):
    """Holds every site's sums; forms the classes when they are asked for.

    A site that has sent its sums keeps its class whether or not it answers later rounds. Nothing travels during
    training. A site whose sums never arrived has no class: its mean is set where no image is near. With the descriptor
    `encoder` that is every site that does not answer after the last round.
    """

    sums = True

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._sums: dict[str, Tensors] = {}
        self._descriptor = self.options["descriptor"]
        self._template = sums_template(length_of(self._descriptor, self.settings))
        self._phase = DELIVER if self._descriptor == ENCODER else REGISTER  # when the sums come
        final = self._phase == DELIVER
        channels = self.settings.task.channels
        self._range = None if final else image_range(channels)
        self._scale = torch.zeros(0, dtype=torch.float64) if final else image_scale(channels)[1]
        self._weighed: tuple[dict[str, float], dict[str, str]] | None = None
        self.shrinkage = ENCODER_SHRINKAGE if final else SHRINKAGES[0]

    @classmethod
    def check(cls, settings: JobSettings, options: Mapping[str, Any], n_sites: float) -> None:
        if options["descriptor"] == ENCODER and "global" not in settings.tracks:
            raise UserError(
                "the selector's descriptor `encoder` looks through the global model, and there is none",
                remedy="add a track `global` (fedavg, fedprox or scaffold), or use the descriptor `image`",
            )
        if options["descriptor"] == ENCODER and settings.task.network:
            raise UserError(
                "the selector's descriptor `encoder` needs the U-Net, and the task names another network",
                remedy="use the descriptor `image`, or leave `network` out",
            )

    def payload(self, phase: Phase, site: str) -> Tensors:
        """The classes, after the last round, for the sites to choose the shrinkage with."""
        if phase != DELIVER or not self._sums:
            return {}
        final = self._phase == DELIVER
        encoder = encoder_weights(self.settings.task, self.tracks["global"].payload(DELIVER, site)) if final else {}
        scalars = {
            "shrinkage": torch.tensor(self.shrinkage, dtype=torch.float64),
            "descriptor": torch.tensor(DESCRIPTORS.index(self._descriptor)),
        }
        classes = classes_of(self._sums, self.sites, self._weights()[0])
        typical = typical_distances(classes, self._sums, self.sites, self.shrinkage)
        return classes | {"typical": typical} | scalars | prefixed("encoder", encoder)

    def expects(self, phase: Phase) -> Tensors:
        return self._template if phase == self._phase else {}

    def problem(self, phase: Phase, tensors: Tensors, images: Mapping[str, int], report: Report) -> str | None:
        if tensors and tensors["n"].item() != images["train"]:
            return f"statistics of {tensors['n'].item():g} images, but {images['train']} training images"
        if tensors and (reason := sums_problem(tensors, self._range)):
            return reason
        values = report.get("accuracies")
        if report and (
            not isinstance(values, list) or len(values) != len(SHRINKAGES) or not all(map(is_fraction, values))
        ):
            return "accuracies are malformed"
        return None

    def accept(self, phase: Phase, site: str, tensors: Tensors, weight: float = 0) -> None:
        if tensors["n"].item() < 1:
            log.warning("site %r: statistics of %g images; it has no class", site, tensors["n"].item())
            return
        self._sums[site] = {k: v.double() for k, v in tensors.items()}
        self._weighed = None

    def close(self, phase: Phase, reports: Mapping[str, Report] | None = None) -> dict[str, str]:
        """In a round, drops the sums of an earlier encoder: new ones are handed over after the last round.

        After the last round, takes the shrinkage with the best validation accuracy over the sites; the smallest of
        equals. Each site's accuracies are compared with their own mean, then the trimmed mean is taken over sites, so
        that a single one of four or more sites cannot decide.
        """
        if phase == TRAIN:
            if self._phase == DELIVER:
                self._sums, self._weighed = {}, None
            return {}
        curves = [report["accuracies"] for report in (reports or {}).values() if report]
        if curves:
            gains = [[accuracy - sum(curve) / len(curve) for accuracy in curve] for curve in curves]
            means = [round(trimmed_mean([g[i] for g in gains]), 12) for i in range(len(SHRINKAGES))]
            self.shrinkage = SHRINKAGES[means.index(max(means))]
        return self._weights()[1] if self._sums else {}

    def _weights(self) -> tuple[dict[str, float], dict[str, str]]:
        """Each site's weight in the covariance, and why some weigh less; computed once for the present sums.

        For a large encoder that takes seconds, and the classes are needed once per site.
        """
        if self._weighed is None:
            self._weighed = covariance_weights(self._sums, self.settings.max_share, self._scale)
        return self._weighed

    def site_distances(self) -> torch.Tensor:
        """(K, K) squared Mahalanobis distances between the sites; NaN where a site's sums are not there."""
        known = [site for site in self.sites if site in self._sums]
        squared = torch.full((len(self.sites), len(self.sites)), torch.nan, dtype=torch.float64)
        if known:
            weights, rows = self._weights()[0], torch.tensor([self.sites.index(site) for site in known])
            classes = gaussian_classes([self._sums[s] for s in known], [weights[s] for s in known])
            squared[rows[:, None], rows] = squared_distances(classes)
        return squared

    def models(self) -> dict[str, list[str]]:
        """None: the classes are the same in every round."""
        return {}

    def join(self, files: dict[str, Tensors], new: list[str]) -> list[str]:
        """A new site sends its sums when it registers."""
        return []

    def files(self) -> dict[str, Tensors]:
        return {f"{self.name}.sums": flat_sums(self._sums)}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self._sums, self._weighed = sums_by_site(files[f"{self.name}.sums"]), None

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        """Drops the site's sums; those of the others stay as they are, so nothing has to be subtracted."""
        sums = files[f"{self.name}.sums"]
        files[f"{self.name}.sums"] = {key: v for key, v in sums.items() if key.rpartition("/")[0] != site}

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """The classes of the other sites' sums: to the bit what they would be if the site had never been there."""
        rest = [s for s in self.sites if s != site]
        sums = sums_by_site(files[f"{self.name}.sums"])
        classes = classes_of(sums, rest, covariance_weights(sums, self.settings.max_share, self._scale)[0])
        return model | classes | {"typical": typical_distances(classes, sums, rest, model["shrinkage"].item())}
