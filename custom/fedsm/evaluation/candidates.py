"""A site's evaluation of the candidates: means and counts over its own images, nothing about a single one.

First the validation images, by which the federation chooses a policy (`fedsm.selectors.policy`); then, with that
policy, the test images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from fedsm.core.dice import dice_per_image
from fedsm.core.errors import UserError
from fedsm.core.limits import shown
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Batch, Tensors
from fedsm.evaluation.choices import Choices, Said
from fedsm.evaluation.majorities import Majorities
from fedsm.nets import build_unet
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, personal
from fedsm.selectors.policy import Policy, flips_of, mirrored_too, probabilities_of, tries_majority
from fedsm.selectors.selection import Selection, apply_policy, by_majority
from fedsm.tracks import build_inference_selector

NO_CHOICES: dict = {"gammas": [], "argmax": {}}


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

    def __init__(self, settings: JobSettings, sites: list[str], tensors: Mapping[str, Tensors], device: torch.device):
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

    def probabilities(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Model name -> (B, L, H, W)."""
        return {name: probabilities_of(net, images) for name, net in self.nets.items()}

    def choices(self, settings: JobSettings, sites: list[str], policy: Policy) -> Choices | None:
        """What collects the scores of the selector's choices; None without a selector."""
        return None if self.rule is None else Choices(settings, self.rule, sites, policy)

    def said(self, images: Iterable[torch.Tensor]) -> Said:
        """What the selector says of several batches."""
        assert self.selector is not None
        yhat, distances = zip(*map(self.selector.probabilities_and_distance, images), strict=True)
        return torch.cat(yhat), None if distances[0] is None else torch.cat(distances)

    def select(self, images: Iterable[torch.Tensor], policy: Policy, slices: Sequence[int]) -> Selection:
        """What a policy selects for several batches of images, which are the slices of these files."""
        selection = self.select_said(self.said(images), policy)
        return by_majority(selection, self.rule, slices) if policy.majority else selection

    def select_said(self, said: Said, policy: Policy) -> Selection:
        """What a policy makes of what the selector says, each image for itself."""
        assert self.rule is not None
        return apply_policy(*said, self.rule, policy)

    def predict(self, images: torch.Tensor, policy: Policy) -> dict[str, torch.Tensor]:
        """The same, with mirror images where the policy has them."""
        plain = self.probabilities(images)
        return self.mirrored(images, plain) if policy.flip else plain

    def mirrored(self, images: torch.Tensor, plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The means of these probabilities and those of the mirror images."""
        return {name: mirrored_too(net, images, plain[name]) for name, net in self.nets.items()}


def main_model(networks: Iterable[str], site: str) -> str:
    """The model of a site where no selector chooses one: the global one, or its own, or whichever there is."""
    names = list(networks)
    return next((name for name in (GLOBAL, personal(site)) if name in names), names[0])


@torch.no_grad()
def validate_candidates(
    settings: JobSettings,
    sites: list[str],
    site: str,
    candidates: Mapping[str, Tensors],
    batches: Callable[[], Iterable[Batch]],
    device: torch.device,
    slices: Sequence[int] = (),
) -> dict:
    """Scores every candidate and every policy on a site's validation images.

    Args:
        settings: the job's settings.
        sites: names of all sites, in index order.
        site: whose images they are.
        candidates: model name (`global`, `personal.<site>`, `selector`) -> tensors.
        batches: walks the images anew at each call.
        device: where to compute.
        slices: of each file, in the order of the images; empty: none is a volume.

    Returns:
        images, dice, gammas, argmax: as in `evaluate_candidates`, without mirror images;
        mixtures: one row per share and flip, with `share`, `flip` and `dice`, a list: mean Dice over images and labels
        at each gamma (a single value where there is no threshold);
        deltas: one row per delta and a last one without (None), with `delta`, `foreign` (images beyond it) and `dice`,
        a list: at each share, without gamma and mirror images; empty where the selector knows no distance;
        majorities: the rows of `mixtures` with one model for each volume; empty where no file is a volume, or where it
        is not tried.
    """
    models = Candidates(settings, sites, candidates, device)
    choices, majorities, start = models.choices(settings, sites, Policy()), None, 0
    if models.rule not in (None, MIXTURE) and tries_majority(settings) and max(slices, default=1) > 1:
        majorities = Majorities(settings, models.rule, models.said(_images(batches)), slices)
    dice: dict[str, list[torch.Tensor]] = {name: [] for name in models.nets}
    alone: dict[bool, list[torch.Tensor]] = {flip: [] for flip in flips_of(settings)}  # without a selector
    for images, truth in _truths(batches):
        plain = models.probabilities(images)
        for name, values in plain.items():
            dice[name].append(dice_per_image(values > 0.5, truth))
        said = models.selector.probabilities_and_distance(images) if models.selector else None
        if choices and said:
            choices.add_hard(said, _stacked(plain, models.order), truth)
        for flip in alone:
            found = models.mirrored(images, plain) if flip else plain
            if choices and said:
                choices.add_mixtures(said, flip, _stacked(found, models.order), truth)
                if majorities:
                    majorities.add(start, flip, _stacked(found, models.order), truth)
            else:
                alone[flip].append(dice_per_image(found[main_model(models.nets, site)] > 0.5, truth))
        start += len(images)
    by_label = _by_label(settings)
    if choices:
        mixtures, deltas = choices.mixture_rows(), choices.delta_rows()
    else:
        mixtures = [{"share": 0.0, "flip": flip, "dice": [torch.cat(v).mean().item()]} for flip, v in alone.items()]
        deltas = []
    rows = choices.rows(by_label) if choices else NO_CHOICES
    tried = {"mixtures": mixtures, "deltas": deltas, "majorities": majorities.rows() if majorities else []}
    return _scores(dice, by_label) | rows | tried


@torch.no_grad()
def evaluate_candidates(
    settings: JobSettings,
    sites: list[str],
    candidates: Mapping[str, Tensors],
    batches: Callable[[], Iterable[Batch]],
    device: torch.device,
    policy: Policy,
    slices: Sequence[int] = (),
) -> dict:
    """Scores every candidate and the policy on a site's test images.

    Args:
        settings: the job's settings.
        sites: names of all sites, in index order.
        candidates: model name (`global`, `personal.<site>`, `selector`) -> tensors.
        batches: each call walks the images from the start.
        device: where to compute.
        policy: what was chosen on the validation images.
        slices: of each file, in the order of the images; empty: none is a volume.

    Returns:
        images: how many;
        dice: model name -> label -> mean Dice; with mirror images where the policy has them, so that all models are
        used alike;
        gammas: one row per gamma of Algorithm 2, plain, with `gamma`, `dice` (label -> mean), `selected`
        (model name -> images) and, where the settings ask for it, `blend` (label -> mean), in the order of
        settings.gammas; one row with gamma None for a selector without a threshold; empty where there is no selector or
        a candidate is missing;
        argmax: model's site (`global` for the global model) -> images for which it was the selector's first choice;
        policy: the super model itself: `dice` (label -> mean), `selected`, `foreign` (None where nobody can tell); None
        without a selector.
    """
    models = Candidates(settings, sites, candidates, device)
    choices, whole, start = models.choices(settings, sites, policy), None, 0
    if choices and policy.majority and max(slices, default=1) > 1:
        whole = models.select(_images(batches), policy, slices)
    dice: dict[str, list[torch.Tensor]] = {name: [] for name in models.nets}
    for images, truth in _truths(batches):
        plain = models.probabilities(images)
        found = models.mirrored(images, plain) if policy.flip else plain
        for name, values in found.items():
            dice[name].append(dice_per_image(values > 0.5, truth))
        if choices and models.selector:
            said = models.selector.probabilities_and_distance(images)
            choices.add_hard(said, _stacked(plain, models.order), truth)
            part = slice(start, start + len(images))
            selection = models.select_said(said, policy) if whole is None else whole.rows(part)
            choices.add_policy(selection, _stacked(found, models.order), truth)
        start += len(images)
    by_label = _by_label(settings)
    rows = choices.rows(by_label) if choices else NO_CHOICES
    return _scores(dice, by_label) | rows | {"policy": choices.policy_row(by_label) if choices else None}


def _truths(batches: Callable[[], Iterable[Batch]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return ((images, labels > 0) for images, labels in batches())


def _images(batches: Callable[[], Iterable[Batch]]) -> Iterator[torch.Tensor]:
    return (images for images, _ in batches())


def _stacked(by_name: dict[str, torch.Tensor], order: list[str]) -> torch.Tensor:
    return torch.stack([by_name[name] for name in order])


def _by_label(settings: JobSettings) -> Callable[[torch.Tensor], dict[str, float]]:
    labels = list(settings.task.labels)
    return lambda values: dict(zip(labels, values.mean(0).tolist(), strict=True))


def _scores(dice: dict[str, list[torch.Tensor]], by_label: Callable[[torch.Tensor], dict[str, float]]) -> dict:
    scores = {name: torch.cat(parts) for name, parts in dice.items()}
    return {
        "images": len(next(iter(scores.values()))),
        "dice": {name: by_label(values) for name, values in scores.items()},
    }
