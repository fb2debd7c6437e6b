"""The state of a run between its rounds: tracks, record, files, and the connection to the sites."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal

from fedsm.core.draw import draw, drawn_count
from fedsm.core.errors import UserError
from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.aggregator import REFUSED, WARNED, SoftPullAggregator
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.flare.task_runner import GO_ON, TaskRunner
from fedsm.server.checkpoint import Checkpoints
from fedsm.server.outcome import best_models
from fedsm.server.quarantine import Quarantine
from fedsm.server.record import AcceptedLog, Progress, RunRecord
from fedsm.server.resume import save
from fedsm.tracks.base import REGISTER, ServerTrack


@dataclass
class Run:
    """A run at the server.

    Attributes:
        controller: the controller that sends its tasks and log lines.
        fl_ctx: the context.
        abort_signal: whether the job was stopped.
        job: the job's settings.
        folder: the job's own folder.
        tracks: the server halves, by name.
        record: what has happened so far, kept in every checkpoint.
        last_round: the last round that was closed; 0: none.
        here: the sites that are clients of this job, in index order.
        aggregator: checks and merges the answers.
        checkpoints: where the rounds are kept.
        progress: the events for those who follow the run.
        accepted_log: a line for each update that was merged.
        store: where the networks of single sites are kept.
    """

    controller: Controller
    fl_ctx: FLContext
    abort_signal: Signal
    job: JobSettings
    folder: Path
    tracks: dict[str, ServerTrack]
    record: RunRecord
    last_round: int
    here: list[str]
    aggregator: SoftPullAggregator
    checkpoints: Checkpoints
    progress: Progress
    accepted_log: AcceptedLog
    store: ModelStore = IN_MEMORY
    unregistered: dict[str, str] = field(default_factory=dict)  # site -> why its registration failed
    _noting: threading.Lock = field(default_factory=threading.Lock)
    _open_task: tuple[str, int] = ("", 0)

    def __post_init__(self) -> None:
        self._warned = {(entry["site"], entry["reason"]) for entry in self.record.warned}
        self._open_task = ("", self.last_round)
        self.quarantine = Quarantine(self.job, self.record.warnings)
        self.aggregator.bind(self.tracks, self.sites, self.job, self.record.norms, self.note, self.record.conduct_seed)
        self._runner = TaskRunner(
            self.controller, self.aggregator, self.job, self._common_meta, self.fl_ctx, self.abort_signal, self.store
        )

    @property
    def sites(self) -> list[str]:
        """All sites of the run, in index order, here or not."""
        return self.record.sites

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped."""
        return self.abort_signal.triggered

    def registered_here(self) -> list[str]:
        """The sites that can be given a task."""
        return [site for site in self.here if site in self.aggregator.registry.images]

    def sites_to_train(self, number: int) -> tuple[list[str], list[str]]:
        """The sites that are asked to train in a round, in index order, and the spare ones: of those of
        `registered_here` that are not in quarantine all, or the job's `fraction`; see `core/draw.py`."""
        here = self.registered_here()
        resting = {site for site in here if self.quarantine.until(site, number) is not None}
        count = drawn_count(self.job.fraction, self.job.min_sites, len(here))
        asked, spare = draw(here, count, self.job.seed, number, resting)
        return sorted(asked, key=here.index), spare

    def run_task(self, spec: TaskSpec) -> TaskResults:
        """Gives the sites a task; see `TaskRunner.run_task`."""
        self._open_task = (spec.task, spec.number)
        return self._runner.run_task(spec)

    def _common_meta(self, spec: TaskSpec) -> dict:
        return spec.meta | {
            "round": spec.number,
            "run_id": self.record.run_id,
            "sites": self.sites,
            "settings": self.job.to_dict(),
            "tracks": spec.tracks,
        }

    def register(self, sites: list[str], needed: int) -> None:
        """Asks sites for their image counts and for what their tracks send once, before round 1."""
        results = self.run_task(TaskSpec("registration", exchange.REGISTER, self.last_round, sites, needed))
        self.unregistered = {site: f"not registered: {reason}" for site, reason in results.missing.items()}
        registry = self.aggregator.registry
        for site in results.accepted:
            self.log_info(f"fedsm round={self.last_round} site={site} registered images={registry.images[site]}")
        self.record.images |= registry.images
        self.record.wire.setdefault("registration_up_bytes", {}).update(results.up)
        self.warn(registry.unusual_counts())
        for track in self.tracks.values():
            self.warn(track.close(REGISTER))

    def best_models(self) -> dict[str, Tensors]:
        """The models of which a super model would be made now: each from its best validation round."""
        return best_models(self.tracks, self.record, self.checkpoints)

    def checkpoint(self) -> None:
        """Writes everything that is needed to go on from here."""
        try:
            save(self.checkpoints, self.last_round, self.tracks, self.record, self.job)
        except UserError as e:
            raise UserError(e.what, remedy=f"{e.remedy}, then {GO_ON}" if e.remedy else GO_ON) from e

    def note(self, kind: str, site: str, reason: str) -> bool:
        """Keeps a refusal or a warning for the results and the progress file; False if it is only counted."""
        task, number = self._open_task
        entry = {"round": number, "task": task, "site": site, "reason": reason}
        with self._noting:
            if not self.record.note(kind == REFUSED, entry):
                return False
        with contextlib.suppress(OSError):  # a full disk is reported by the next checkpoint
            self.progress.tell(kind, **entry)
        return True

    def warn(self, found: dict[str, str]) -> None:
        """Warns once about what is unusual in what a site sent: site -> what a person should know."""
        for site, reason in found.items():
            if (site, reason) not in self._warned:
                self._warned.add((site, reason))
                self.controller.log_warning(self.fl_ctx, f"fedsm round={self.last_round} site={site} warned: {reason}")
                self.note(WARNED, site, reason)

    def log_info(self, message: str) -> None:
        """A line for the server's log."""
        self.controller.log_info(self.fl_ctx, message)
