"""The server's side of a FedSM job: rounds, quorum, deadlines, checkpoints, the super model."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedsm import exchange
from fedsm.data.site_folder import natural_key
from fedsm.errors import UserError
from fedsm.nets import build_unet
from fedsm.server.aggregator import SoftPullAggregator
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.curves import send_losses, send_validation
from fedsm.server.dispatch import dispatch
from fedsm.server.memory import peak_bytes, received_to_disk, return_freed_memory
from fedsm.server.outcome import best_models, write_results, write_super_model
from fedsm.server.record import Progress, RunRecord
from fedsm.server.results import evaluation_problem, summarize
from fedsm.settings import JobSettings
from fedsm.tracks import playing, server_tracks
from fedsm.tracks.base import Tensors

_MB = 1024 * 1024
_REGISTER_AGAIN = 60  # seconds that a round waits for sites which did not register at the start
# What a resumed run may not change, or its weights would be those of neither run.
_FIXED = ("task", "tracks", "local_epochs", "batch_size", "size", "lr", "selector_lr", "seed")


class FedSMController(Controller):
    """Runs a FedSM job: registers the sites, trains the rounds, and lets every site try the candidates.

    Every site gets its own payload each round (its personal model), so there is one task a site. A round is closed
    when all answered or at its deadline; it needs `min_sites` good answers. A site that misses a round keeps its
    place and is invited again. Results that come late are refused. What sites send is received to the server's disk and
    read one answer at a time, so that its memory holds K + 1 models however many answer at once.

    Args:
        settings: the job's settings as a plain dict; see `fedsm.settings.JobSettings`.
        aggregator_id: the component that checks and merges the answers.
        resume_from: a `checkpoints` folder of an earlier run to go on from, on the server's disk.
    """

    def __init__(self, settings: dict, aggregator_id: str = "aggregator", resume_from: str = ""):
        super().__init__()
        self.settings = settings
        self.aggregator_id = aggregator_id
        self.resume_from = resume_from

    def start_controller(self, fl_ctx: FLContext) -> None:
        exchange.enable_tensors()
        self._started = time.time()
        self._folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._progress = Progress(self._folder / "progress.jsonl")

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open between rounds."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        with received_to_disk(fl_ctx.get_engine(), fl_ctx.get_job_id()):
            self._run(abort_signal, fl_ctx)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            self._prepare(fl_ctx)
            self._register(self._sites, self._job.round_timeout, fl_ctx, abort_signal)
            self._checkpoint()
            for number in range(self._round + 1, self._job.rounds + 1):
                if abort_signal.triggered:
                    break
                self._train_round(number, fl_ctx, abort_signal)
            if not abort_signal.triggered:
                self._finish(fl_ctx, abort_signal)
        except UserError as e:
            self._progress.tell("failed", reason=str(e))
            self.system_panic(str(e), fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        self.log_warning(fl_ctx, f"fedsm site={client.name} refused: its answer to {task_name} came too late")

    def _prepare(self, fl_ctx: FLContext) -> None:
        """Reads the settings, takes stock of the sites and builds the tracks, afresh or from a checkpoint."""
        engine = fl_ctx.get_engine()
        self._job = JobSettings.from_dict(self.settings)
        self._sites = sorted((c.name for c in engine.get_clients()), key=natural_key)
        build_unet(self._job.task)  # loads what building a network loads, so that it does not count as growth
        return_freed_memory()
        self._start_rss = psutil.Process().memory_info().rss
        self._tracks = server_tracks(self._job, self._sites)
        self._aggregator = engine.get_component(self.aggregator_id)
        if not isinstance(self._aggregator, SoftPullAggregator):
            raise UserError(f"component {self.aggregator_id!r} is no SoftPullAggregator")
        self._aggregator.bind(self._tracks, self._sites)
        self._checkpoints = Checkpoints(self._folder / FOLDER, self._job.keep_checkpoints)
        self._round = 0
        self._record = RunRecord(uuid.uuid4().hex[:12], self._sites)
        if self.resume_from:
            self._resume(fl_ctx)
        cleanup_memory()
        self._progress.tell("started", sites=self._sites, rounds=self._job.rounds, round=self._round)

    def _resume(self, fl_ctx: FLContext) -> None:
        self._checkpoints.adopt(Checkpoints(Path(self.resume_from)))
        state = self._checkpoints.load()
        if state["record"]["sites"] != self._sites:
            raise UserError(
                f"the checkpoint in {self.resume_from} is of the sites {', '.join(state['record']['sites'])};"
                f" this job has {', '.join(self._sites)}"
            )
        different = [k for k, v in self._job.to_dict().items() if k in _FIXED and state["settings"].get(k) != v]
        if different:
            raise UserError(f"the checkpoint in {self.resume_from} was made with another {different[0]!r} setting")
        if state["settings"]["rounds"] != self._job.rounds and any(track.alone for track in self._tracks.values()):
            raise UserError(
                f"{self._job.method} trains its selector in the last rounds: a resumed run keeps its rounds"
            )
        if state["round"] > self._job.rounds:
            raise UserError(f"{state['round']} rounds are done already, more than the {self._job.rounds} asked for")
        files = {stem: self._checkpoints.load_weights(name) for stem, name in state["files"].items()}
        try:
            for track in self._tracks.values():
                track.load_files(files)
        except KeyError as e:
            raise UserError(f"the checkpoint in {self.resume_from} is of another method: it lacks {e}") from e
        self._round = state["round"]
        self._record = RunRecord(**state["record"], best=state["best"])
        self.log_info(fl_ctx, f"fedsm resumes run {self._record.run_id} after round {self._round}")

    def _ask(
        self, task: str, number: int, payload: Callable[[str], dict[str, Tensors]], sites: list[str], timeout: float,
        fl_ctx: FLContext, abort_signal: Signal, names: list[str] | None = None,
    ) -> tuple[dict[str, dict], dict[str, str], dict[str, int]]:  # fmt: skip
        """Gives every site one task, in which the tracks `names` play (None: all); the aggregator judges the answers.

        Returns:
            accepted answers' meta by site, why the others are missing by site, bytes sent down by site.
        """
        common = {
            "round": number,
            "run_id": self._record.run_id,
            "sites": self._sites,
            "settings": self._job.to_dict(),
            "tracks": names,
        }
        payloads = {site: payload(site) for site in sites}
        down = {site: exchange.payload_bytes(p) for site, p in payloads.items()}
        self._aggregator.begin(task, number, names)
        missing = dispatch(
            self,
            task,
            {site: lambda p=p: exchange.pack(p, dict(common)) for site, p in payloads.items()},
            timeout,
            self._aggregator.accept,
            fl_ctx,
            abort_signal,
        )
        for site, reason in missing.items():
            self.log_error(fl_ctx, f"fedsm round={number} site={site} missing: {reason}")
        return self._aggregator.accepted, self._aggregator.refused | missing, down

    def _need_quorum(self, what: str, answered: dict, missing: dict[str, str]) -> None:
        if len(answered) < self._job.min_sites:
            reasons = "; ".join(f"{site}: {reason}" for site, reason in missing.items())
            raise UserError(
                f"{what}: {len(answered)} of {len(self._sites)} sites gave a good answer, min_sites is"
                f" {self._job.min_sites} ({reasons}); the last checkpoint is in {self._checkpoints.folder}"
            )

    def _register(self, sites: list[str], timeout: float, fl_ctx: FLContext, abort_signal: Signal) -> None:
        """Asks sites for their image counts and what their tracks send once."""
        answered, missing, _ = self._ask(
            exchange.REGISTER, self._round, lambda site: {}, sites, timeout, fl_ctx, abort_signal
        )
        if not abort_signal.triggered:
            self._need_quorum("registration", self._aggregator.registered, missing)
        for site, meta in answered.items():
            self.log_info(fl_ctx, f"fedsm round={self._round} site={site} registered images={meta['images']}")

    def _train_round(self, number: int, fl_ctx: FLContext, abort_signal: Signal) -> None:
        absent = [s for s in self._sites if s not in self._aggregator.registered]
        if absent:
            self._register(absent, min(_REGISTER_AGAIN, self._job.round_timeout), fl_ctx, abort_signal)
        invited = [s for s in self._sites if s in self._aggregator.registered]
        names, before = playing(self._tracks, number), playing(self._tracks, number - 1)
        if number > 1 and names != before:
            self._settle(number - 1, before, fl_ctx, abort_signal)
        for name in names:
            self._tracks[name].open(self._candidates)

        started = time.time()
        answered, missing, down = self._ask(
            exchange.TRAIN, number, lambda s: {n: self._tracks[n].payload(s) for n in names}, invited,
            self._job.round_timeout, fl_ctx, abort_signal, names,
        )  # fmt: skip
        if abort_signal.triggered:
            return
        self._need_quorum(f"round {number}", answered, missing)
        self._record.add_validation(
            number - 1, self._tracks, {site: meta.get("reports", {}) for site, meta in answered.items()}
        )
        self._aggregator.aggregate(fl_ctx)
        self._round = number
        missing |= {site: "not registered" for site in absent if site not in self._aggregator.registered}
        row = self._record.add_round(number, answered, missing, time.time() - started)
        self._record.add_bytes(down, self._aggregator.up_bytes)
        self._checkpoint()
        self._announce(row, fl_ctx)
        cleanup_memory()

    def _checkpoint(self) -> None:
        files = {stem: tensors for track in self._tracks.values() for stem, tensors in track.files().items()}
        record = self._record.to_dict()
        best = record.pop("best")
        self._checkpoints.save(self._round, files, {"record": record, "best": best, "settings": self._job.to_dict()})

    def _announce(self, row: dict, fl_ctx: FLContext) -> None:
        """One log line a site, one progress line, and the curves of what is complete: the round before."""
        number = row["round"]
        for site in row["answered"]:
            losses = " ".join(f"loss_{t}={by[site]:.4f}" for t, by in row["loss"].items() if site in by)
            self.log_info(fl_ctx, f"fedsm round={number} site={site} accepted {losses}")
        entering = self._record.history[number - 2].get("score", {}) if number > 1 else {}
        self._progress.tell(
            "round",
            round=number,
            seconds=row["seconds"],
            score=entering,
            answered=row["answered"],
            missing=row["missing"],
        )
        send_losses(self, row, fl_ctx)
        if number > 1:
            send_validation(self, self._record.history[number - 2], fl_ctx)

    def _settle(self, last: int, names: list[str], fl_ctx: FLContext, abort_signal: Signal) -> None:
        """Ends the training of these tracks after round `last`: their last models are validated, kept ones fetched."""
        self._progress.tell("validating")
        answered, missing, _ = self._ask(
            exchange.VALIDATE, last, lambda s: {n: self._tracks[n].final_payload(s) for n in names}, self._registered(),
            self._job.round_timeout, fl_ctx, abort_signal, names,
        )  # fmt: skip
        if abort_signal.triggered:
            return
        self._need_quorum("validation of the last models", answered, missing)
        self._record.add_delivery(self._aggregator.up_bytes)
        reports = {site: meta.get("reports", {}) for site, meta in answered.items()}
        self._record.add_validation(last, self._tracks, reports)
        for name in names:
            self._tracks[name].close_validation({site: r[name] for site, r in reports.items() if name in r})
        self._checkpoint()
        send_validation(self, self._record.history[last - 1], fl_ctx)

    def _registered(self) -> list[str]:
        return sorted(self._aggregator.registered, key=natural_key)

    def _finish(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        """Validates the last models, sends the candidates round once, writes the super model and the results."""
        last = self._round
        self._settle(last, playing(self._tracks, last), fl_ctx, abort_signal)
        if abort_signal.triggered:
            return
        candidates = self._candidates()
        for track in self._tracks.values():
            track.release()  # the last models are in the checkpoint; the candidates take their place in memory
        cleanup_memory()
        self._progress.tell("evaluating")
        answered, missing, down = self._ask(
            exchange.EVALUATE, last, lambda site: candidates, self._registered(), self._job.evaluate_timeout, fl_ctx,
            abort_signal,
        )  # fmt: skip
        if abort_signal.triggered:
            return
        evaluations = {}
        for site, meta in sorted(answered.items(), key=lambda item: natural_key(item[0])):
            counts = self._aggregator.registered[site]
            reason = evaluation_problem(meta.get("evaluation"), self._job, self._sites, list(candidates), counts)
            if reason:
                missing[site] = reason
                self.log_error(fl_ctx, f"fedsm evaluation site={site} refused: {reason}")
            else:
                evaluations[site] = meta["evaluation"]
        self._need_quorum("evaluation of the candidates", evaluations, missing)
        self._write(candidates, summarize(evaluations, self._job, self._sites), missing, down)
        self.log_info(fl_ctx, f"fedsm finished: results and super model are in {self._folder}")

    def _candidates(self) -> dict[str, Tensors]:
        return best_models(self._tracks, self._record, self._checkpoints)

    def _write(
        self, candidates: dict[str, Tensors], summary: dict, missing: dict[str, str], down: dict[str, int]
    ) -> None:
        images = self._aggregator.registered
        write_super_model(self._folder, self._job, self._record, self._tracks, candidates, summary, images)
        measured = {
            "images": images,
            "wire": self._record.wire | {"evaluation_down_bytes": down},
            "seconds": {
                "round": [row["seconds"] for row in self._record.history],
                "total": time.time() - self._started,
            },
            "peak_rss_mb": {"server": round(peak_bytes() / _MB, 1), "server_start": round(self._start_rss / _MB, 1)},
            "missing_in_evaluation": missing,
        }
        write_results(self._folder, self._job, self._record, self._tracks, summary, measured)
        self._progress.tell("finished", results="results.json")
