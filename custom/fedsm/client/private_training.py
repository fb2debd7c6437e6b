"""Differentially private training at a site: how much noise, which batches, and when the budget is spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsm.client.privacy_ledger import History, PrivacyLedger
from fedsm.client.site_file import PrivacyOfTraining
from fedsm.core.errors import UserError
from fedsm.core.privacy_loss import NoisySteps, epsilon_of, noise_for
from fedsm.core.settings import JobSettings
from fedsm.data.dataset import Part
from fedsm.data.poisson import PoissonBatches
from fedsm.tracks.base import ClientTrack
from fedsm.tracks.private_steps import StepNoise, make_private

_SAME = 1 + 1e-9  # between an epsilon and its limit


class PrivateTraining:
    """One job's training at a site with `dp`.

    The noise is planned for all of the job's rounds, also where it asks for a `fraction` of the sites: nobody promises
    a site fewer, and who is drawn is no secret, so nothing is saved by sampling. Every round costs the same:
    `local_epochs` times as many steps as there are batches. They are added to the site's ledger before the first of
    them (`reserve`), and there they stay, whatever becomes of the round: a round that is asked for again is paid for
    again.

    Args:
        dp: what the site asks for.
        settings: the job's settings.
        train: the site's training images.
        state: the site's state folder.
        run: the job's run id.
        site: the site's name.

    Raises:
        UserError: Opacus is missing, or no noise makes the planned rounds private enough.
    """

    def __init__(
        self, dp: PrivacyOfTraining, settings: JobSettings, train: Part, state: Path, run: str, site: str
    ):  # fmt: skip
        self._dp, self._run, self._site = dp, run, site
        self._batches = PoissonBatches(train.rows_by_patient(), settings.batch_size)
        self._ledger = PrivacyLedger(state, site)
        count = settings.local_epochs * self._batches.per_epoch
        planned = settings.rounds * count
        rate = self._batches.rate
        noise = dp.noise_multiplier or noise_for(dp.epsilon, dp.delta, rate, planned)
        self._round = NoisySteps(noise, rate, count)
        self._rng = np.random.default_rng()  # seeded by the operating system: nobody can draw the same again
        self.noise = StepNoise(dp.max_grad_norm, noise, self._batches.size, rng=self._rng)
        self._history: History = []

    def protect(self, tracks: dict[str, ClientTrack]) -> None:
        """Makes the training of these tracks private.

        Raises:
            UserError: a track or a network with which that cannot be done.
        """
        make_private(tracks, self.noise)

    def reserve(self, tracks: dict[str, ClientTrack]) -> None:
        """Pays for a round of these tracks, before it begins.

        Raises:
            UserError: the budget is spent, or the ledger cannot be used.
        """
        self.noise.networks = max(1, sum(not track.sums for track in tracks.values()))
        self._history = self._ledger.reserve(self._run, self._round, self._check)

    def _check(self, history: History) -> None:
        dp = self._dp
        job, all_jobs = self._loss(history, self._run), self._loss(history)
        if all_jobs > dp.total * _SAME:
            whose, loss, limit, word = "all jobs", all_jobs, dp.total, "budget"
        elif job > dp.epsilon * _SAME:
            whose, loss, limit, word = "one job", job, dp.epsilon, "epsilon"
        else:
            return
        message = (
            f"the site's privacy budget for {whose} is spent: another round would bring epsilon to {loss:.4g}, and"
            f" {word} is {limit:g}"
        )
        raise UserError(
            f"{message} ({self._ledger.path})",
            site=self._site,
            remedy="the site takes no further part in training, the others go on; if the patients' privacy allows it,"
            f" raise `{word}` of dp in fedsm_site.yaml",
            public=f"{message}; only the site's owner can raise it (dp in fedsm_site.yaml)",
        )

    def _loss(self, history: History, run: str | None = None) -> float:
        steps = [one for name, one in history if run in (None, name)]
        return epsilon_of(steps, self._dp.delta)

    def batches(self) -> Iterator[tuple[torch.Tensor, bool]]:
        """The rows of a round's batches, at least one each, and whether nobody was drawn: then the row does not count,
        which `noise.empty` must say while the batch is stepped."""
        for rows in self._batches.draw(self._round.count, self._rng):
            yield (rows, False) if len(rows) else (torch.zeros(1, dtype=torch.int64), True)

    def seed(self) -> int:
        """A seed that no one else can compute, for what a batch draws besides its noise: augmentation and dropout.

        The draws of a batch's images follow one another, so who is in it decides what the others get. That adds
        nothing to the privacy loss while the draws are independent; with draws that somebody knows, a patient would
        move the sum by more than one gradient.
        """
        return int(self._rng.integers(2**63))

    def report(self) -> dict[str, Any]:
        """What the server is told after a round: what the run, and all jobs, have cost so far, and how."""
        dp, steps = self._dp, self._round
        done = sum(one.count for run, one in self._history if run == self._run)
        return {
            "epsilon": self._loss(self._history, self._run),
            "delta": dp.delta,
            "spent": self._loss(self._history),
            "budget": dp.total,
            "noise_multiplier": steps.noise,
            "max_grad_norm": dp.max_grad_norm,
            "sample_rate": steps.rate,
            "steps": done,
        }
