"""A site's evaluation of the candidates: means and counts over its own images, nothing about a single image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fedsm.core.dice import dice_per_image
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.nets import build_unet
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, blend, mix, personal
from fedsm.selectors.selection import choose
from fedsm.tracks import build_inference_selector


class Candidates:
    """The networks that may become part of a super model, ready to segment images.

    Args:
        settings: the job's settings.
        sites: names of all sites, in index order.
        tensors: model name (`global`, `personal.<site>`, `selector`) -> tensors.
        device: where to compute.

    Raises:
        UserError: a network that belongs to no site: its scores would reveal more about the images.

    Attributes:
        nets: model name -> U-Net.
        order: the models as a selector numbers them: the global one, then each site's.
        selector: the selector; None if there is none, or if a model that it may choose is missing.
        rule: how the selector's output is used; None without a selector.
    """

    def __init__(self, settings: JobSettings, sites: list[str], tensors: dict[str, Tensors], device: torch.device):
        self.order = [GLOBAL, *map(personal, sites)]
        if strange := sorted(set(tensors) - {*self.order, "selector"}):
            raise UserError(
                f"network {shown(strange[0])} belongs to no site of the super model", public="refused: a network"
            )
        self.nets = {name: build_unet(settings.task) for name in tensors if name != "selector"}
        for name, net in self.nets.items():
            net.load_state_dict(tensors[name])
            net.to(device).eval()
        self.selector = None
        if "selector" in tensors and not set(self.order) - set(self.nets):
            self.selector = build_inference_selector(settings, len(sites), tensors["selector"], device)
        self.rule = getattr(self.selector, "rule", THRESHOLD) if self.selector else None

    def logits(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Model name -> (B, L, H, W) outputs."""
        return {name: net(images) for name, net in self.nets.items()}


@torch.no_grad()
def evaluate_candidates(
    settings: JobSettings,
    sites: list[str],
    candidates: dict[str, Tensors],
    batches: Callable[[], Iterable[Batch]],
    device: torch.device,
) -> dict:
    """Scores every candidate, and the selector's choice among them, on one part of a site.

    Args:
        settings: the job's settings.
        sites: names of all sites, in index order.
        candidates: model name (`global`, `personal.<site>`, `selector`) -> tensors.
        batches: each call walks the images from the start.
        device: where to compute.

    Returns:
        images: how many;
        dice: model name -> label -> mean Dice;
        gammas: one row per gamma, with `gamma`, `dice` (label -> mean), `selected` (model name -> images) and, if the
        settings ask for it, `blend` (label -> mean), in the order of settings.gammas; one row with gamma None for a
        selector without a threshold; empty if there is no selector or a candidate is missing;
        argmax: model's site (`global` for the global model) -> images for which it was the selector's first choice.
    """
    labels = list(settings.task.labels)
    models = Candidates(settings, sites, candidates, device)
    selection = _Selection(settings, models.selector, sites) if models.selector else None
    dice: dict[str, list[torch.Tensor]] = {name: [] for name in models.nets}
    for images, truth in batches():
        logits = models.logits(images)
        for name, values in logits.items():
            dice[name].append(dice_per_image(values > 0, truth > 0))
        if selection:
            order = models.order
            selection.add(images, truth, torch.stack([logits[n] for n in order]), [dice[n][-1] for n in order])
    scores = {name: torch.cat(parts) for name, parts in dice.items()}

    def by_label(values: torch.Tensor) -> dict[str, float]:
        return dict(zip(labels, values.mean(0).tolist(), strict=True))

    return {
        "images": len(next(iter(scores.values()))),
        "dice": {name: by_label(values) for name, values in scores.items()},
        "gammas": selection.rows(by_label) if selection else [],
        "argmax": selection.first_choices() if selection else {},
    }


class _Selection:
    """The scores of the selector's choices, collected batch by batch."""

    def __init__(self, settings: JobSettings, selector: Any, sites: list[str]):
        self._selector = selector
        self._sites = sites
        self._rule = getattr(selector, "rule", THRESHOLD)
        self._blends = settings.blend and self._rule == THRESHOLD
        self._gammas = list(settings.gammas) if self._rule == THRESHOLD else [None]
        self._dice: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._blended: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._chosen: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._first: list[torch.Tensor] = []

    def add(self, images: torch.Tensor, truth: torch.Tensor, logits: torch.Tensor, dice: list[torch.Tensor]) -> None:
        """Takes a batch: the models' logits (M, B, L, H, W) and Dice (B, L) each, the global model first."""
        yhat = self._selector.probabilities(images)
        self._first.append(choose(yhat, self._rule, 0.0))
        every, rows = torch.stack(dice), torch.arange(len(images))
        for i, gamma in enumerate(self._gammas):
            chosen = choose(yhat, self._rule, gamma)
            self._chosen[i].append(chosen)
            if self._rule == MIXTURE:
                self._dice[i].append(dice_per_image(mix(yhat, logits) > 0.5, truth > 0))
            else:
                self._dice[i].append(every[chosen, rows])
            if self._blends and gamma is not None:
                self._blended[i].append(dice_per_image(mix(blend(yhat, gamma), logits) > 0.5, truth > 0))

    def rows(self, by_label: Callable[[torch.Tensor], dict[str, float]]) -> list[dict]:
        """One row per gamma."""
        models = [GLOBAL, *map(personal, self._sites)]
        rows = []
        for i, gamma in enumerate(self._gammas):
            chosen = torch.cat(self._chosen[i])
            row = {"gamma": gamma, "dice": by_label(torch.cat(self._dice[i]))}
            row["selected"] = {name: int((chosen == m).sum()) for m, name in enumerate(models)}
            rows.append(row | ({"blend": by_label(torch.cat(self._blended[i]))} if self._blends else {}))
        return rows

    def first_choices(self) -> dict[str, int]:
        """How often each model was the most probable one."""
        first = torch.cat(self._first)
        counts = {site: int((first == k + 1).sum()) for k, site in enumerate(self._sites)}
        return counts | ({GLOBAL: int((first == 0).sum())} if self._rule != THRESHOLD else {})
