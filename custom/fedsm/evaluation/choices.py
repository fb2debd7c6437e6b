"""The scores of what a selector chooses, collected batch by batch: at each gamma, each delta, each mixture."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedsm.core.dice import dice_per_image
from fedsm.core.settings import JobSettings
from fedsm.selectors.inference import GLOBAL, MIXTURE, THRESHOLD, blend, mix, personal
from fedsm.selectors.policy import Policy, deltas_of, flips_of, is_foreign, shares_of
from fedsm.selectors.selection import Selection, choose, mixed_with_global, weights_of

Said = tuple[torch.Tensor, torch.Tensor | None]
ByLabel = Callable[[torch.Tensor], dict[str, float]]


class Choices:
    """Collects the Dice of the selector's choices over the batches of a site.

    `said` is what the selector says of a batch: its probabilities and distances. Every score leaves only as a mean.

    Args:
        settings: the job's settings.
        rule: how the selector is read.
        sites: names of all sites, in index order.
        policy: what `add_policy` scores.
    """

    def __init__(self, settings: JobSettings, rule: str, sites: list[str], policy: Policy):
        self._rule, self._policy = rule, policy
        self._models = [GLOBAL, *map(personal, sites)]
        self._sites = sites
        has_threshold = rule == THRESHOLD
        self._blends = settings.blend and has_threshold
        self._gammas: list[float | None] = list(settings.gammas) if has_threshold else [None]
        self._shares = shares_of(settings) if has_threshold else [0.0]
        deltas = deltas_of(settings) if has_threshold else []
        self._deltas: list[float | None] = [*deltas, None] if deltas else []  # None: no limit
        self._hard: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._blended: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._chosen: list[list[torch.Tensor]] = [[] for _ in self._gammas]
        self._first: list[torch.Tensor] = []
        # share and flip -> gamma's number -> Dice of the images, the mean over labels
        self._mixed: dict[tuple[float, bool], list[list[torch.Tensor]]] = {
            (share, flip): [[] for _ in self._gammas] for flip in flips_of(settings) for share in self._shares
        }
        self._limited: list[list[list[torch.Tensor]]] = [[[] for _ in self._shares] for _ in self._deltas]
        self._foreign = [0] * len(self._deltas)
        self._final: list[torch.Tensor] = []
        self._final_choice: list[torch.Tensor] = []
        self._final_foreign: list[torch.Tensor] = []

    def add_hard(self, said: Said, probabilities: torch.Tensor, truth: torch.Tensor) -> None:
        """Algorithm 2 at each gamma.

        Args:
            said: by the selector.
            probabilities: (M, B, L, H, W) of the models, the global one first.
            truth: (B, L, H, W) bool.
        """
        yhat = said[0]
        self._first.append(choose(yhat, self._rule, 0.0))
        every = torch.stack([dice_per_image(model > 0.5, truth) for model in probabilities])
        rows = torch.arange(len(yhat))
        for i, gamma in enumerate(self._gammas):
            chosen = choose(yhat, self._rule, gamma)
            self._chosen[i].append(chosen)
            if self._rule == MIXTURE:
                self._hard[i].append(dice_per_image(mix(yhat, probabilities) > 0.5, truth))
            else:
                self._hard[i].append(every[chosen, rows])
            if self._blends and gamma is not None:
                self._blended[i].append(dice_per_image(mix(blend(yhat, gamma), probabilities) > 0.5, truth))

    def add_mixtures(self, said: Said, flip: bool, probabilities: torch.Tensor, truth: torch.Tensor) -> None:
        """The global model's shares at each gamma; without mirror images also at each delta.

        An image gets either the global model or the mixture of it and the most probable personal model, so two scores
        per share serve all thresholds.
        """
        yhat, distance = said
        rows = torch.arange(len(yhat))
        if self._rule != THRESHOLD:
            weights = yhat if self._rule == MIXTURE else torch.eye(len(self._models))[choose(yhat, self._rule, None)]
            self._mixed[(0.0, flip)][0].append(mean_dice(mix(weights, probabilities), truth))
            return
        from_global = mean_dice(probabilities[0], truth)
        nearest = torch.eye(len(self._models))[yhat.argmax(1) + 1]
        for number, share in enumerate(self._shares):
            mixed = mean_dice(mix(mixed_with_global(nearest, share), probabilities), truth)
            either = torch.stack([from_global, mixed])
            for i, gamma in enumerate(self._gammas):
                taken = choose(yhat, self._rule, gamma) > 0
                self._mixed[(share, flip)][i].append(either[taken.long(), rows])
            if flip or distance is None:
                continue
            for i, delta in enumerate(self._deltas):
                foreign = is_foreign(distance, delta, yhat.argmax(1))
                self._limited[i][number].append(mixed if foreign is None else torch.where(foreign, from_global, mixed))
                self._foreign[i] += int(foreign.sum()) if foreign is not None and number == 0 else 0

    def add_policy(self, selection: Selection, probabilities: torch.Tensor, truth: torch.Tensor) -> None:
        """The policy itself, and what it selects."""
        weights = weights_of(selection, len(self._models), self._rule, self._policy)
        self._final.append(dice_per_image(mix(weights, probabilities) > 0.5, truth))
        self._final_choice.append(selection.choices)
        if selection.foreign is not None:
            self._final_foreign.append(selection.foreign)

    def rows(self, by_label: ByLabel) -> dict:
        """`gammas` and `argmax` as in `fedsm.evaluation.candidates`."""
        rows = []
        for i, gamma in enumerate(self._gammas):
            row = {"gamma": gamma, "dice": by_label(torch.cat(self._hard[i]))}
            selected = {"selected": self._census(torch.cat(self._chosen[i]))}
            rows.append(row | selected | ({"blend": by_label(torch.cat(self._blended[i]))} if self._blends else {}))
        first = torch.cat(self._first)
        counts = {site: int((first == k + 1).sum()) for k, site in enumerate(self._sites)}
        return {
            "gammas": rows,
            "argmax": counts | ({GLOBAL: int((first == 0).sum())} if self._rule != THRESHOLD else {}),
        }

    def mixture_rows(self) -> list[dict]:
        """`mixtures` as in `fedsm.evaluation.candidates`."""
        return [
            {"share": share, "flip": flip, "dice": [torch.cat(v).mean().item() for v in values]}
            for (share, flip), values in self._mixed.items()
        ]

    def delta_rows(self) -> list[dict]:
        """`deltas` as in `fedsm.evaluation.candidates`."""
        return [
            {"delta": delta, "foreign": foreign, "dice": [torch.cat(v).mean().item() for v in values]}
            for delta, foreign, values in zip(self._deltas, self._foreign, self._limited, strict=True)
            if values[0]
        ]

    def policy_row(self, by_label: ByLabel) -> dict:
        """`policy` as in `fedsm.evaluation.candidates`."""
        foreign = int(torch.cat(self._final_foreign).sum()) if self._final_foreign else None
        selected = self._census(torch.cat(self._final_choice))
        return {"dice": by_label(torch.cat(self._final)), "selected": selected, "foreign": foreign}

    def _census(self, chosen: torch.Tensor) -> dict[str, int]:
        return {name: int((chosen == m).sum()) for m, name in enumerate(self._models)}


def mean_dice(probabilities: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """(B,) Dice of each image, the mean over labels."""
    return dice_per_image(probabilities > 0.5, truth).mean(1)
