"""The selector without training: Gaussian classes from each site's sums.

With d(x) a descriptor of an image, site k sends once n_k, s_k = sum d and Q_k = sum d d^T. The server forms

    mu_k  = s_k / n_k
    Sigma = sum_k (Q_k - n_k mu_k mu_k^T) / (n - K)           pooled within-class covariance
    R     = (1 - a) D^-1 Sigma D^-1 + a I,  D = diag(Sigma)^1/2    shrunk correlation
    m_k   = z^T R^-1 z,  z = D^-1 (d(x) - mu_k)               squared Mahalanobis distance
    yhat  = softmax(-m / 2)

It is exactly what pooling all images would give, so there is no drift; a site joins or leaves by adding or
subtracting its sums; min_k m_k says how foreign an image is. Sums that no images can have are refused
(`possible_sums`), a site whose images scatter far more widely than the others' is left out of Sigma, and none weighs
more there than `max_share` allows (`covariance_weights`).

The descriptors `image` and `image+random` need no training: their sums go up before round 1 and a is chosen on
validation data after the last. `encoder` looks through the last global model: its sums go up after the last round, when
no task is left in which a could be chosen. It is fixed then, see `ENCODER_SHRINKAGE`. Of the global model the super
model holds the best round; the encoder that the sums belong to is kept with the selector.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch

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
from fedsm.selectors.gaussian import StatisticsSelector, classes_of, flat_sums, sums_by_site, sums_template
from fedsm.selectors.network_features import encoder_weights
from fedsm.selectors.possible_sums import sums_problem
from fedsm.selectors.private_sums import PrivateSums
from fedsm.selectors.releases import SumsKey, exact_sums
from fedsm.tracks.base import ClientTrack, ServerTrack, SilentServer

SHRINKAGES = (0.02, 0.05, 0.1)
# The safest of those: the encoder gives more numbers than there are images. With a trained U-Net on the nuclei data
# (three splits) these three, 0.3 and 0.5 gave the same accuracy.
ENCODER_SHRINKAGE = 0.1
_NEEDS_GLOBAL = (
    "descriptor `encoder` of a statistics selector looks through the global model: it needs a track `global` that is"
    " one network for all sites (fedavg, fedprox, scaffold); or use the descriptor `image`"
)

log = logging.getLogger(__name__)


class StatisticsClient(ClientTrack):
    """Sends n, the sum and the sum of outer products of its training images' descriptors, once.

    A site counts the different sums that it sends (`releases`), and may want them differentially private
    (`private_sums`).
    """

    sums = True

    def __init__(self, *args):
        super().__init__(*args)
        self._descriptor = self.options["descriptor"]
        self._payload: Tensors = {}
        self._delivery: Tensors = {}
        self._release: Callable = lambda rows, channels, key: exact_sums(rows)

    def protect(self, release: Callable) -> None:
        if isinstance(release, PrivateSums) and self._descriptor != IMAGE:
            message = f"the site's statistics_privacy works with the descriptor {IMAGE!r}, not {self._descriptor!r}"
            raise UserError(f"{message}: ask for another job, or take it out of fedsm_site.yaml", public=message)
        self._release = release

    def link(self, tracks: dict[str, ClientTrack]) -> None:
        self._global = tracks.get("global")

    def register(self, batches: Iterable[Batch]) -> Tensors:
        return {} if self._descriptor == ENCODER else self._sums(batches, {})

    def survey(self, batches: Iterable[Batch]) -> None:
        if self._descriptor == ENCODER:
            self._delivery = self._sums(batches, encoder_weights(self.settings.task, self._global.received))

    def deliver(self) -> Tensors:
        return self._delivery

    def _sums(self, batches: Iterable[Batch], encoder: Tensors) -> Tensors:
        describe = build_descriptor(self._descriptor, self.settings, encoder)
        key = SumsKey(descriptor_values(self._descriptor, self.settings), encoder)
        rows = torch.cat([describe(images) for images in key.see(images for images, _ in batches)])
        return self._release(rows, self.settings.task.channels, key.hexdigest())

    def receive(self, payload: Tensors) -> None:
        self._payload = payload

    def validate(self, batches: Iterable[Batch]) -> dict:
        """Accuracy for each shrinkage, after the last round; during training there is nothing to score."""
        if not self._payload or self._descriptor == ENCODER:
            return {}
        selectors = [
            StatisticsSelector(self.settings, self.n_sites, self._payload | {"shrinkage": torch.tensor(a)}, self.device)
            for a in SHRINKAGES
        ]
        hits = [0] * len(selectors)
        images = 0
        for x, _ in batches:
            images += len(x)
            rows = selectors[0].describe(x)
            for i, selector in enumerate(selectors):
                hits[i] += int((selector.distances_of(rows).argmin(1) == self.index).sum())
        accuracies = [h / images for h in hits]
        return {"score": max(accuracies), "images": images, "accuracies": accuracies}


class StatisticsServer(SilentServer):
    """Holds every site's sums; forms the classes when they are asked for.

    A site that has sent its sums keeps its class whether or not it answers later rounds. Nothing travels during
    training. A site whose sums never arrived has no class: it is given a mean that no image is near. With the
    descriptor `encoder` that is every site that is gone after the last round.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._sums: dict[str, Tensors] = {}
        self._descriptor = self.options["descriptor"]
        self._template = sums_template(length_of(self._descriptor, self.settings))
        self._late = self._descriptor == ENCODER
        channels = self.settings.task.channels
        self._range = None if self._late else image_range(channels)
        self._scale = torch.zeros(0, dtype=torch.float64) if self._late else image_scale(channels)[1]
        self._weighed: tuple[dict[str, float], dict[str, str]] | None = None
        self.shrinkage = ENCODER_SHRINKAGE if self._late else SHRINKAGES[0]

    @classmethod
    def check(cls, settings: JobSettings, options: dict, n_sites: float) -> None:
        if options["descriptor"] == ENCODER and "global" not in settings.tracks:
            raise UserError(_NEEDS_GLOBAL)

    def link(self, tracks: dict[str, ServerTrack]) -> None:
        self._global = tracks.get("global")

    def close(self) -> None:
        """What an encoder of an earlier round saw is old now, and will be handed over again."""
        if self._late:
            self._sums, self._weighed = {}, None

    def registration_template(self) -> Tensors:
        return {} if self._late else self._template

    def delivery_template(self) -> Tensors:
        return self._template if self._late else {}

    def registration_problem(self, tensors: Tensors, images: dict[str, int]) -> str | None:
        if tensors["n"].item() != images["train"]:
            return f"statistics of {tensors['n'].item():g} images, but {images['train']} training images"
        return sums_problem(tensors, self._range)

    def report_problem(self, report: dict) -> str | None:
        values = report.get("accuracies")
        if not isinstance(values, list) or len(values) != len(SHRINKAGES) or not all(map(is_fraction, values)):
            return "accuracies are malformed"
        return None

    def register(self, site: str, tensors: Tensors) -> None:
        self._sums[site] = {k: v.double() for k, v in tensors.items()}
        self._weighed = None

    def delivery_problem(self, tensors: Tensors, images: dict[str, int]) -> str | None:
        return self.registration_problem(tensors, images)

    def deliver(self, site: str, tensors: Tensors) -> None:
        if tensors["n"].item() < 1:
            log.warning("site %r: statistics of %g images; it has no class", site, tensors["n"].item())
            return
        self.register(site, tensors)

    def final_payload(self, site: str) -> Tensors:
        if not self._sums:
            return {}
        encoder = encoder_weights(self.settings.task, self._global.final_payload(site)) if self._late else {}
        scalars = {
            "shrinkage": torch.tensor(self.shrinkage, dtype=torch.float64),
            "descriptor": torch.tensor(DESCRIPTORS.index(self._descriptor)),
        }
        return classes_of(self._sums, self.sites, self._weights()[0]) | scalars | prefixed("encoder", encoder)

    def warnings(self) -> dict[str, str]:
        return self._weights()[1]

    def _weights(self) -> tuple[dict[str, float], dict[str, str]]:
        """What each site weighs in the covariance, and why some weigh less; computed once for the sums that are there.

        For a large encoder that takes seconds, and the classes are asked for once a site.
        """
        if self._weighed is None:
            self._weighed = covariance_weights(self._sums, self.settings.max_share, self._scale)
        return self._weighed

    def close_validation(self, reports: dict[str, dict]) -> None:
        """Takes the shrinkage with the best validation accuracy over the sites; the smallest of equals.

        Each site's accuracies against their own mean, then the trimmed mean over sites: one of four or more sites
        cannot decide.
        """
        curves = [r["accuracies"] for r in reports.values() if r]
        if curves:
            gains = [[accuracy - sum(curve) / len(curve) for accuracy in curve] for curve in curves]
            means = [round(trimmed_mean([g[i] for g in gains]), 12) for i in range(len(SHRINKAGES))]
            self.shrinkage = SHRINKAGES[means.index(max(means))]

    def models(self) -> list[str]:
        return []

    def files(self) -> dict[str, Tensors]:
        return {f"{self.name}.sums": flat_sums(self._sums)}

    def load_files(self, files: dict[str, Tensors]) -> None:
        self._sums, self._weighed = sums_by_site(files[f"{self.name}.sums"]), None

    def leave(self, files: dict[str, Tensors], site: str) -> None:
        """The site's sums are dropped, and those of the others are what they were: nothing has to be subtracted."""
        sums = files[f"{self.name}.sums"]
        files[f"{self.name}.sums"] = {key: v for key, v in sums.items() if key.rpartition("/")[0] != site}

    def leave_model(self, model: Tensors, files: dict[str, Tensors], site: str) -> Tensors:
        """The classes of the others' sums: to the bit what they would be had the site never been there."""
        rest = [s for s in self.sites if s != site]
        sums = sums_by_site(files[f"{self.name}.sums"])
        return model | classes_of(sums, rest, covariance_weights(sums, self.settings.max_share, self._scale)[0])
