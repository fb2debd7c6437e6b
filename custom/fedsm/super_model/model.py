"""The super model in memory: which network segments an image, and the mask that it gives. Needs no FLARE.

from fedsm.super_model.model import SuperModel

prediction = SuperModel.load("runs/first/super_model").predict("image.png")
prediction.mask, prediction.model, prediction.confidence
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.core.text import one_line
from fedsm.core.trust import trust_in
from fedsm.data.dataset import to_pixels
from fedsm.data.intensity import IntensityError
from fedsm.data.labels import compose, mask_table
from fedsm.data.site_folder import match_channels, read_image
from fedsm.nets import build_unet, check_sizes
from fedsm.selectors.inference import DIRECT, GLOBAL, THRESHOLD, personal
from fedsm.selectors.policy import Policy, mirrored_too, policy_problem, probabilities_of, read_policy
from fedsm.selectors.selection import Selection, apply_policy, weights_of
from fedsm.super_model.artefact import SuperModelFiles, load_super_model
from fedsm.super_model.prediction import BatchPrediction, Prediction, join, labels_at
from fedsm.super_model.volumes import predict_volumes
from fedsm.tracks import build_inference_selector, knows_distance, selection_rule

SELECTOR = "selector"


class SuperModel:
    """A super model that is ready to predict.

    Attributes:
        settings: what it was trained with.
        manifest: its manifest.
        sites: names of the sites, in index order.
        models: names of all models, `global` first, then the sites'.
        available: those of them that are there.
        rule: how its selector is read (`fedsm.selectors.inference`); None without a selector.
        policy: its thresholds and mixtures, as they were chosen on the validation images.
    """

    def __init__(self, settings: JobSettings, manifest: dict, networks: Mapping[str, Tensors], device: torch.device):
        self.settings, self.manifest, self.device = settings, manifest, device
        self.sites: list[str] = manifest["sites"]
        self.models = [GLOBAL, *map(personal, self.sites)]
        self.available = [name for name in self.models if name in networks]
        self.policy = read_policy(manifest, "the super model's manifest")
        self.blend_gamma: float | None = manifest.get("blend_gamma")  # None: soft selection was not scored
        self.rule = selection_rule(settings) if SELECTOR in networks else None
        self._networks = networks
        self._nets: dict[str, nn.Module] = {}
        check_sizes(settings, len(self.sites))
        self._table = mask_table(settings.task)
        missing = [name for name in self.models if name not in networks]
        if missing and (self.rule or not self.available):
            raise UserError(f"the super model has no network {missing[0]!r}", remedy="copy it again")

    @classmethod
    def load(
        cls, path: str | Path, device: str | torch.device | None = None, verify: bool | str | Path = False
    ) -> SuperModel:
        """Loads a super model's folder; its files are checked against their checksums.

        Args:
            path: `super_model/` of a run.
            device: where to compute; default CUDA when present, else the CPU.
            verify: who must have signed it: the server of the federation of this startup kit (the kit's folder, or its
                `startup/rootCA.pem`), or the owner of this public key (a PEM file, or its text). True: anybody, so that
                it is only known that nothing has changed since. False: it need not be signed.

        Raises:
            UserError: something is missing, damaged or not a super model's, there is no such device, or `verify` fails.
        """
        try:
            device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as e:
            raise UserError(f"device {str(device)!r} cannot be used: {str(e).splitlines()[0]}") from e
        files = load_super_model(Path(path), None if verify is False else trust_in(verify))
        try:
            return cls(files.settings, files.manifest, files.networks, device)
        except (KeyError, RuntimeError, ValueError) as e:  # torch on weights that do not fit the settings
            raise UserError(f"{path} does not fit together: {str(e).splitlines()[0]}", remedy="copy it again") from e

    @property
    def files(self) -> SuperModelFiles:
        """What its folder holds."""
        return SuperModelFiles(self.settings, self.manifest, self._networks)

    def net(self, name: str) -> nn.Module:
        """A model's U-Net, made when it is first needed; it uses the file's own tensors, no copies."""
        if name not in self._nets:
            with self._fitting(name):
                net = copy.deepcopy(self._skeleton)
                net.load_state_dict(self._networks[name], assign=True)
            self._nets[name] = net.to(self.device).eval().requires_grad_(False)
        return self._nets[name]

    @property
    def mask_dtype(self) -> np.dtype:
        """The data type that holds every mask value of the task."""
        return self._table.dtype

    @cached_property
    def _skeleton(self) -> nn.Module:
        with torch.device("meta"):  # no weights are drawn; building it takes longer than copying it
            return build_unet(self.settings.task)

    @cached_property
    def selector(self) -> Any:
        """The selector, or None; see `build_inference_selector`."""
        if self.rule is None:
            return None
        with self._fitting(SELECTOR):
            return build_inference_selector(self.settings, len(self.sites), self._networks[SELECTOR], self.device)

    @contextlib.contextmanager
    def _fitting(self, name: str) -> Iterator[None]:
        """For building a network from its weights: torch has many ways to say that they do not fit the settings.

        Raises:
            UserError: they do not.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as e:
            reason = one_line((str(e).splitlines() or [type(e).__name__])[0], 120)
            raise UserError(f"network {name!r} of the super model does not fit its settings ({reason})") from e

    @torch.no_grad()
    def select(self, images: torch.Tensor, policy: Policy | None = None) -> Selection:
        """Which model segments each image of a batch (B, C, S, S) in 0..1; `policy`: another than its own.

        Without a selector it is the global model.

        Raises:
            UserError: there is neither a selector nor a global model.
        """
        if self.rule is None:
            if GLOBAL not in self.available:
                raise UserError(
                    "the super model has neither a selector nor a global model", remedy=f"name a site: {self._names()}"
                )
            return Selection(torch.zeros(len(images), dtype=torch.long))
        yhat, distance = self.selector.probabilities_and_distance(images.to(self.device))
        return apply_policy(yhat, distance, self.rule, policy or self.policy)

    @torch.no_grad()
    def predict_batch(
        self, images: torch.Tensor, site: str | None = None, use_global: bool = False, blend: bool = False,
        selection: Selection | None = None, **changes: Any,
    ) -> BatchPrediction:  # fmt: skip
        """Predicts (B, C, S, S) images in 0..1; each network gets its images as one batch.

        Args:
            images: as `to_pixels` gives them, S the size of training.
            site: take this site's personal model.
            use_global: take the global model.
            blend: soft selection: the two most probable models share an image.
            selection: what was selected for these images, as parts of volumes (`select_volume`); None: each image
                selects for itself.
            **changes: other values of the policy than its own: `gamma` (with `blend`: of soft selection), `delta`,
                `share`, `flip`, `majority` (for whoever predicts whole volumes).

        Raises:
            UserError: the super model does not have this model, or the options do not fit the selector.
        """
        self.check(site, use_global, blend, **changes)
        policy = self.policy_for(site, use_global, blend, **changes)
        images = images.to(self.device)
        forced = GLOBAL if use_global else personal(site) if site is not None else None
        if forced and self.rule is None:
            selection = Selection(torch.zeros(len(images), dtype=torch.long))
        elif selection is None:
            selection = self.select(images, policy)
        if forced:
            selection = selection._replace(choices=torch.full((len(images),), self.models.index(forced)))
        rule = None if forced else self.rule
        weights = weights_of(selection, len(self.models), rule, policy, blend)
        return BatchPrediction(self._segment(images, weights, policy.flip), weights, selection)

    def predict(
        self, image: str | Path | np.ndarray, site: str | None = None, use_global: bool = False, blend: bool = False,
        **changes: Any,
    ) -> Prediction:  # fmt: skip
        """Predicts a file or an array; the options are those of `predict_batch`.

        Args:
            image: a picture's or volume's path, or an array (H, W), (H, W, C) or (slices, H, W, C) with the numbers
                that a file would hold.

        Raises:
            UserError: an image that cannot be used.
        """
        pixels, size = self.read(image)
        options = {"site": site, "use_global": use_global, "blend": blend, **changes}
        slices = self.finish(predict_volumes(self, pixels, [len(pixels)], self.settings.batch_size, **options), size)
        return slices[0] if len(slices) == 1 else join(slices)

    def read(self, image: str | Path | np.ndarray) -> tuple[torch.Tensor, tuple[int, int]]:
        """An image as the networks see it, (slices, C, S, S), and its own size (H, W)."""
        task = self.settings.task
        if isinstance(image, np.ndarray):
            name, array = "the array", image[..., None] if image.ndim == 2 else image
            array = array[None] if array.ndim == 3 else array
            if array.ndim != 4 or 0 in array.shape or not np.isfinite(array).all():
                raise UserError(f"an array of shape {image.shape} is no image, or holds NaN or infinite values")
            array = match_channels(array, task, name, None)
        else:
            name, array = str(image), read_image(Path(image), task)
        return self.pixels(array, name), array.shape[1:3]

    def pixels(self, array: np.ndarray, name: str) -> torch.Tensor:
        """(slices, H, W, C) of the task's channels to (slices, C, S, S), as in training."""
        try:
            return to_pixels(array, self.settings.task, self.settings.size)
        except IntensityError as e:
            raise UserError(e.message, file=name, remedy=e.remedy) from e

    def finish(self, batch: BatchPrediction, size: tuple[int, int]) -> list[Prediction]:
        """A batch of images of one size to predictions in that size."""
        yhat, distance, foreign = batch.selection[1:]
        return [
            Prediction(
                compose(labels_at(output, size), self._table),
                self._model_name(batch.weights[row]),
                None if yhat is None else yhat[row].max().item(),
                None if distance is None else distance[row].item(),
                output,
                None if foreign is None else bool(foreign[row]),
            )
            for row, output in enumerate(batch.probabilities.cpu())
        ]

    def check(self, site: str | None = None, use_global: bool = False, blend: bool = False, **changes: Any) -> None:
        """Refuses options that do not fit this super model.

        Raises:
            UserError: with the remedy.
        """
        if site is not None and use_global:
            raise UserError("a site's model and the global one cannot both be asked for")
        if site is not None and site not in self.sites:
            raise UserError(f"the super model knows no site {site!r}", remedy=f"known: {self._names()}")
        wanted = GLOBAL if use_global else personal(site) if site is not None else None
        if wanted and wanted not in self.available:
            raise UserError(f"the super model has no network {wanted!r}", remedy=f"it has {', '.join(self.available)}")
        if blend and (self.rule != THRESHOLD or wanted):
            raise UserError("soft selection needs a selector with a threshold, and neither a site nor the global model")
        given = [name for name, value in changes.items() if value is not None and name not in ("flip", "majority")]
        if given and self.rule != THRESHOLD:
            raise UserError(f"{given[0]} cannot be used: the super model has no selector, or one without a threshold")
        if changes.get("delta") is not None and not knows_distance(self.settings):
            raise UserError("delta cannot be used: a trained selector knows no distance of an image")
        if changes.get("majority") and (self.rule not in (THRESHOLD, DIRECT) or wanted or blend):
            raise UserError(
                "a volume's majority needs a selector that chooses one model, and neither soft selection, a site nor"
                " the global model"
            )
        if problem := policy_problem(self.policy_for(site, use_global, blend, **changes)):
            raise UserError(problem)
        if not wanted and self.rule is None:
            self.select(torch.empty(0))

    def policy_for(
        self, site: str | None = None, use_global: bool = False, blend: bool = False, **changes: Any
    ) -> Policy:  # fmt: skip
        """The policy with these options of `predict_batch`. A volume's slices vote where they select one model."""
        own = self.policy.changed(gamma=self.blend_gamma) if blend else self.policy
        return own.changed(**({"majority": False} if site is not None or use_global or blend else {}) | changes)

    def _segment(self, images: torch.Tensor, weights: torch.Tensor, flip: bool) -> torch.Tensor:
        """The weighted probabilities of the networks; each network only sees the images in which it has a share."""
        task = self.settings.task
        output = images.new_zeros(len(images), len(task.labels), *images.shape[-2:])
        for column, name in enumerate(self.models):
            rows = weights[:, column].nonzero()[:, 0].to(images.device)
            if len(rows):
                share = weights[:, column].to(images.device)[rows, None, None, None]
                found = probabilities_of(self.net(name), images[rows])
                output[rows] += share * (mirrored_too(self.net(name), images[rows], found) if flip else found)
        return output

    def _model_name(self, weights: torch.Tensor) -> str:
        parts = [(self.models[i], weights[i].item()) for i in weights.argsort(descending=True) if weights[i] >= 0.005]
        return parts[0][0] if len(parts) == 1 else " + ".join(f"{share:.2f} {name}" for name, share in parts)

    def _names(self) -> str:
        return ", ".join(self.sites)
