"""The Dice of one model for each volume, collected batch by batch, at each gamma, share and flip.

Beside that of one model for each slice (`fedsm.evaluation.choices`), so that the federation can compare both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedsm.core.settings import JobSettings
from fedsm.evaluation.choices import Said, mean_dice
from fedsm.selectors.inference import THRESHOLD, mix
from fedsm.selectors.policy import Policy, flips_of, shares_of
from fedsm.selectors.selection import apply_policy, by_majority, mixed_with_global


class Majorities:
    """Collects the Dice of the slices of a site's volumes; every score leaves only as a mean.

    Args:
        settings: the job's settings.
        rule: how the selector is read; not as a mixture.
        said: by the selector, of all images.
        slices: of each file.
    """

    def __init__(self, settings: JobSettings, rule: str, said: Said, slices: Sequence[int]):
        gammas = list(settings.gammas) if rule == THRESHOLD else [None]
        selections = [by_majority(apply_policy(*said, rule, Policy(gamma)), rule, slices) for gamma in gammas]
        self._chosen = torch.stack([selection.choices for selection in selections])  # (gammas, images)
        shares = shares_of(settings) if rule == THRESHOLD else [0.0]
        self._dice: dict[tuple[float, bool], list[torch.Tensor]] = {
            (share, flip): [] for flip in flips_of(settings) for share in shares
        }

    def add(self, first: int, flip: bool, probabilities: torch.Tensor, truth: torch.Tensor) -> None:
        """The next batch.

        Args:
            first: the number of its first image.
            flip: whether mirror images are in the probabilities.
            probabilities: (M, B, L, H, W) of the models, the global one first.
            truth: (B, L, H, W) bool.
        """
        chosen, models = self._chosen[:, first : first + len(truth)], torch.eye(len(probabilities))
        for share in {share for share, mirrored in self._dice if mirrored == flip}:
            dice = torch.zeros(chosen.shape)
            for model in chosen.unique().tolist():
                rows = (chosen == model).any(0)
                weights = mixed_with_global(models[model].expand(int(rows.sum()), -1), share)
                found = mean_dice(mix(weights, probabilities[:, rows]), truth[rows]).cpu()
                dice[:, rows] = torch.where(chosen[:, rows] == model, found, dice[:, rows])
            self._dice[share, flip].append(dice)

    def rows(self) -> list[dict]:
        """`majorities` as in `fedsm.evaluation.candidates`."""
        return [
            {"share": share, "flip": flip, "dice": torch.cat(parts, 1).mean(1).tolist()}
            for (share, flip), parts in self._dice.items()
        ]
