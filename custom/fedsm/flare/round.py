"""One round, from its opening to its checkpoint. Read `Round.play` from top to bottom.

What happens at a site is `SiteTrainer.train` (client/site_trainer.py); what a track does with an update, and what it
makes of all of them, is in its own file (tracks/).
"""

from __future__ import annotations

import time

from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedsm.flare import exchange
from fedsm.flare.curves import send_losses, send_validation
from fedsm.flare.monitoring import publish_round
from fedsm.flare.run import Run
from fedsm.flare.secure_sum import secure_sum
from fedsm.flare.settle import settle
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.server.conduct import against_the_others, turned_bad
from fedsm.server.update_loss import noisy_rounds, update_loss
from fedsm.tracks import playing
from fedsm.tracks.base import TRAIN

_TOLD = ("round", "seconds", "answered", "missing", "asked", "attempts", "epsilon", "update_epsilon")  # to progress


class Round:
    """One round of a run.

    Args:
        run: the run; its `last_round` is the one before.
        number: the round's number, from 1.
    """

    def __init__(self, run: Run, number: int):
        self._run = run
        self._number = number
        self._names = playing(run.tracks, number)

    def play(self) -> None:
        """Plays the round. If the job is stopped meanwhile, it leaves the run as it was before the round."""
        run = self._run
        # 1. Sites that could not register before are asked again; they are not waited for.
        if newcomers := [site for site in run.here if site not in run.aggregator.registry.images]:
            run.register(newcomers, needed=0)

        # 2. Tracks whose training ended with the last round are settled (FedSM-extra).
        before = playing(run.tracks, self._number - 1)
        if self._number > 1 and self._names != before:
            settle(run, self._number - 1, before)

        # 3. Every site that is asked gets its own models and trains; good answers are merged as they arrive, the others
        # refused.
        started = time.monotonic()
        for name in self._names:
            run.tracks[name].open(self._number, run.best_models)
        results = run.run_task(self._task())
        if run.stopped:
            return

        # 4. The sites' validation of the models that they received belongs to the round that made these models.
        run.record.add_validation(self._number - 1, run.tracks, results.reports())

        # 5. With `secure_sum` the updates are still at the sites: the tracks get their mean, and no single one.
        if run.job.secure_sum:
            secure_sum(run, self._number, self._names, results)
            if run.stopped:
                return

        # 6. The merged updates become the next models: FedAvg, SoftPull, ... of each track.
        run.aggregator.aggregate(run.fl_ctx)
        run.last_round = self._number

        # 7. The record and the checkpoint: from here on the round is not lost.
        row = self._record(results, time.monotonic() - started)
        self._judge(row, results)
        run.checkpoint()
        self._announce(row)
        cleanup_memory()

    def _task(self) -> TaskSpec:
        run, names = self._run, self._names
        sites, spare = run.sites_to_train(self._number)
        return TaskSpec(
            f"round {self._number}", exchange.TRAIN, self._number, sites, run.job.min_sites, names, spare=spare,
            payload=lambda site: {name: run.tracks[name].payload(TRAIN, site) for name in names},
            expects={} if run.job.secure_sum else None,  # the updates stay at the sites: see step 5
        )  # fmt: skip

    def _record(self, results: TaskResults, seconds: float) -> dict:
        """Notes who answered, the bytes sent and what was merged; returns the round's row of the history.

        A site that was not drawn is not missing: with `fraction` a site is in neither list of many rounds.
        """
        run = self._run
        able = run.registered_here()
        others = {s: "absent" for s in run.sites if s not in able}
        others |= {s: run.unregistered.get(s, "not registered") for s in run.here if s in others}
        resting = {s: run.quarantine.until(s, self._number) for s in able}
        others |= {s: f"in quarantine until round {until}" for s, until in resting.items() if until is not None}
        missing = {s: r for s, r in (others | results.missing).items() if s not in results.accepted}
        row = run.record.add_round(self._number, results.accepted, missing, seconds, results.attempts)
        if run.job.fraction < 1:
            row["asked"] = len(results.asked)
        if run.job.update_privacy:
            rounds = noisy_rounds(run.job, run.record.history)
            row["update_epsilon"] = update_loss(run.job.update_privacy, rounds)["epsilon"]
        run.record.add_bytes(results.down, results.up)
        shares = run.aggregator.registry.shares()
        norms = {} if run.job.update_privacy else results.norms  # they would tell what the noise hides
        run.accepted_log.add(self._number, {site: shares[site] for site in results.accepted}, norms)
        return row

    def _judge(self, row: dict, results: TaskResults) -> None:
        """Compares the sites' updates, scores and losses; warns, and puts into quarantine who was warned too often.

        Not with `update_privacy`: figures about single updates would tell what the noise hides.
        """
        run, number = self._run, self._number
        conduct = run.aggregator.conduct()
        if run.job.update_privacy:
            return
        row["conduct"] = conduct
        shared = [name for name in self._names if run.tracks[name].shared]
        against = against_the_others(row["conduct"], shared)
        run.warn(against)
        run.warn(turned_bad(run.record.history, shared, run.job.fraction))
        suspect = against | results.suspect
        for site, until in run.quarantine.close(number, results.accepted, set(suspect), run.registered_here()).items():
            entry = {"round": number, "site": site, "until": until, "reason": suspect[site]}
            run.record.quarantined.append(entry)
            run.log_info(f"fedsm round={number} site={site} in quarantine until round {until}: {suspect[site]}")
            run.progress.tell("quarantined", **entry)

    def _announce(self, row: dict) -> None:
        """Writes one log line for each site, one progress line, and the curves of the round before, now complete."""
        run, number = self._run, self._number
        for site in row["answered"]:
            losses = " ".join(f"loss_{t}={by[site]:.4f}" for t, by in row["loss"].items() if site in by)
            spent = f"epsilon={row['epsilon'][site]:.4f}" if site in row.get("epsilon", {}) else ""
            run.log_info(f"fedsm round={number} site={site} accepted {losses}{spent}")
        if "update_epsilon" in row:
            run.log_info(f"fedsm round={number} epsilon={row['update_epsilon']:.4f} of every site (update_privacy)")
        entering = run.record.history[number - 2].get("score", {}) if number > 1 else {}
        told = {key: row[key] for key in _TOLD if key in row}
        run.progress.tell("round", score=entering, **told)
        publish_round(row, entering, run.fl_ctx.get_job_id())
        if number > 1:
            send_validation(run.controller, run.record.history[number - 2], run.fl_ctx)
        send_losses(run.controller, row, run.fl_ctx)
