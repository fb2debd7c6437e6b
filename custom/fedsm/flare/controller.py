"""The server's side of a FedSM job: rounds, quorum, deadlines, checkpoints, the super model."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from pathlib import Path

import psutil
from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils.memory_utils import cleanup_memory
from safetensors import SafetensorError

from fedsm.core.errors import UserError
from fedsm.core.natural_order import natural_key
from fedsm.core.private_files import keep_private
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.flare import exchange, watch
from fedsm.flare.aggregator import REFUSED, WARNED, SoftPullAggregator
from fedsm.flare.ask import GO_ON, Answers, Question, ask
from fedsm.flare.compat import intake
from fedsm.flare.compat.fatal_codes import take_fatal_codes_as_failures
from fedsm.flare.compat.memory import job_cells, received_to_disk
from fedsm.flare.compat.site_events import guard_events
from fedsm.flare.compat.tensors import enable_tensors
from fedsm.flare.curves import send_losses, send_validation
from fedsm.flare.submitter import submitter_of
from fedsm.nets import build_unet
from fedsm.server import checks
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.checks import most_message
from fedsm.server.memory import return_freed_memory
from fedsm.server.outcome import best_models, measurements, write_results, write_super_model
from fedsm.server.patience import Patience
from fedsm.server.place import checkpoints_of, hand_over, leave, place_of
from fedsm.server.record import AcceptedLog, Progress, RunRecord
from fedsm.server.results import evaluation_problem, summarize
from fedsm.server.resume import resume, save
from fedsm.tracks import playing, score_names, server_tracks


class FedSMController(Controller):
    """Runs a FedSM job: registers the sites, trains the rounds, and lets every site try the candidates.

    Every site gets its own payload each round (its personal model), so there is one task a site. A round is closed
    when all answered or at its deadline; it needs `min_sites` good answers, and sites that gave none are asked again
    `round_retries` times before the job stops with its checkpoint. A site that misses a round keeps its place and is
    invited again. Results that come late are refused. What sites send is received to the server's disk and read one
    answer at a time, so that its memory holds K + 1 models however many answer at once.

    Args:
        settings: the job's settings as a plain dict; see `fedsm.core.settings.JobSettings`.
        aggregator_id: the component that checks and merges the answers.
        resume_from: what to go on from: `job:` and the ids of the submitter's earlier jobs; in the simulator also a
            `checkpoints` folder. See `server/place.py`.
        from_round: the round to go on from, with `resume_from`; default: the newest that there is a checkpoint of.
    """

    def __init__(
        self, settings: dict, aggregator_id: str = "aggregator", resume_from: str = "", from_round: int | None = None
    ):
        super().__init__()
        guard_events()
        self.from_round = from_round
        self.settings = settings
        self.aggregator_id = aggregator_id
        self.resume_from = resume_from

    def start_controller(self, fl_ctx: FLContext) -> None:
        keep_private()
        enable_tensors()
        take_fatal_codes_as_failures()
        intake.survive_undecodable()
        self._started = time.monotonic()
        self._noting = threading.Lock()
        workspace, job_id = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        self._root, self._folder = Path(workspace.get_root_dir()), Path(workspace.get_run_dir(job_id))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._submitter = submitter_of(fl_ctx)
        self._place = place_of(self._root, self._folder, job_id, self._submitter)
        self._progress = Progress(self._folder / "progress.jsonl")
        watch.serve(fl_ctx.get_engine(), self._progress)
        self._accepted_log = AcceptedLog(self._place)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is left open between rounds."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            with received_to_disk(fl_ctx.get_engine(), fl_ctx.get_job_id()):
                self._run(abort_signal, fl_ctx)
        finally:
            with contextlib.suppress(OSError):  # a full disk: they are still where they were written
                hand_over(self._place, self._folder)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            self._prepare(fl_ctx)
            self._register(self._here, self._job.min_sites, fl_ctx, abort_signal)
            self._checkpoint()
            for number in range(self._round + 1, self._job.rounds + 1):
                if abort_signal.triggered:
                    break
                self._train_round(number, fl_ctx, abort_signal)
            if not abort_signal.triggered:
                self._finish(fl_ctx, abort_signal)
        except UserError as e:
            self._stop(str(e), fl_ctx)
        except (OSError, SafetensorError) as e:
            self._stop(f"nothing can be written to {self._folder} ({e}): make room; {GO_ON}", fl_ctx)

    def _stop(self, reason: str, fl_ctx: FLContext) -> None:
        with contextlib.suppress(OSError):  # it may be the disk that is full
            self._progress.tell("failed", reason=reason)
        self.system_panic(reason, fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        reason = checks.one_line(f"its answer to {task_name} came too late")
        if self._note(REFUSED, client.name, reason):
            self.log_warning(fl_ctx, f"fedsm site={client.name} refused: {reason}")

    def _note(self, kind: str, site: str, reason: str) -> bool:
        """Keeps what was refused or warned of, for the results and for whoever watches; False if it is counted only."""
        entry = {"round": self._asking[1], "task": self._asking[0], "site": site, "reason": reason}
        with self._noting:
            if not self._record.note(kind == REFUSED, entry):
                return False
        with contextlib.suppress(OSError):  # a full disk is the next checkpoint's affair, not this site's
            self._progress.tell(kind, **entry)
        return True

    def _prepare(self, fl_ctx: FLContext) -> None:
        """Reads the settings, takes stock of the sites and builds the tracks, afresh or from a checkpoint."""
        engine = fl_ctx.get_engine()
        self._job = JobSettings.from_dict(self.settings)
        self._here = sorted((c.name for c in engine.get_clients()), key=natural_key)
        build_unet(self._job.task)  # loads what building a network loads, so that it does not count as growth
        return_freed_memory()
        self._start_rss = psutil.Process().memory_info().rss
        self._aggregator = engine.get_component(self.aggregator_id)
        if not isinstance(self._aggregator, SoftPullAggregator):
            raise UserError(f"component {self.aggregator_id!r} is no SoftPullAggregator")
        self._checkpoints = Checkpoints(self._place / FOLDER, self._job.keep_checkpoints)
        if self.resume_from:
            source = checkpoints_of(self.resume_from, self._root, self._submitter)
            self._tracks, self._record, self._round = resume(
                self._job, source, self._checkpoints, self._here, self.from_round
            )
            self._accepted_log.adopt(source.parent, self._round)
            leave(source, self._place, self._root, self._submitter)
            self.log_info(fl_ctx, f"fedsm resumes run {self._record.run_id} after round {self._round}")
        else:
            self._tracks, self._round = server_tracks(self._job, self._here), 0
            self._record = RunRecord(uuid.uuid4().hex[:12], self._here)
        self._sites = self._record.sites
        self._here = [site for site in self._sites if site in self._here]
        self._patience = Patience(self._job.absent_wait)
        self._warned = {(entry["site"], entry["reason"]) for entry in self._record.warned}
        self._asking = ("", self._round)
        self._aggregator.bind(self._tracks, self._sites, self._job, self._record.norms, self._note)
        intake.limit_messages(job_cells(engine), most_message(self._tracks))
        cleanup_memory()
        absent = [site for site in self._sites if site not in self._here]
        if absent:
            self.log_warning(fl_ctx, f"fedsm absent: {', '.join(absent)}; they keep their models and their places")
        told = {"rounds": self._job.rounds, "round": self._round, "scores": score_names(self._job)}
        self._progress.tell("started", sites=self._sites, absent=absent, **told)

    def _ask(self, question: Question, fl_ctx: FLContext, abort_signal: Signal) -> Answers:
        """Puts one question to the sites; see `ask`."""
        common = {
            "round": question.number,
            "run_id": self._record.run_id,
            "sites": self._sites,
            "settings": self._job.to_dict(),
            "tracks": question.names,
        }
        self._asking = (question.task, question.number)
        return ask(self, self._aggregator, question, common, self._job, self._patience, fl_ctx, abort_signal)

    def _register(self, sites: list[str], needed: int, fl_ctx: FLContext, abort_signal: Signal) -> None:
        """Asks sites for their image counts and what their tracks send once."""
        question = Question("registration", exchange.REGISTER, self._round, sites, needed=needed)
        answers = self._ask(question, fl_ctx, abort_signal)
        self._unregistered = {site: f"not registered: {reason}" for site, reason in answers.missing.items()}
        for site, meta in answers.accepted.items():
            self.log_info(fl_ctx, f"fedsm round={self._round} site={site} registered images={meta['images']}")
        self._record.images |= self._aggregator.registered
        self._record.wire.setdefault("registration_up_bytes", {}).update(self._aggregator.up_bytes)
        self._warn(fl_ctx)

    def _warn(self, fl_ctx: FLContext) -> None:
        """Tells once what is odd about what sites sent once: their image counts, and what the tracks find."""
        found = [(site, reason) for track in self._tracks.values() for site, reason in track.warnings().items()]
        for site, reason in [*self._aggregator.bounded().items(), *found]:
            if (site, reason) not in self._warned:
                self._warned.add((site, reason))
                self.log_warning(fl_ctx, f"fedsm round={self._round} site={site} warned: {reason}")
                self._note(WARNED, site, reason)

    def _registered(self) -> list[str]:
        return [site for site in self._here if site in self._aggregator.registered]

    def _train_round(self, number: int, fl_ctx: FLContext, abort_signal: Signal) -> None:
        unregistered = [s for s in self._here if s not in self._aggregator.registered]
        if unregistered:
            self._register(unregistered, 0, fl_ctx, abort_signal)
        names, before = playing(self._tracks, number), playing(self._tracks, number - 1)
        if number > 1 and names != before:
            self._settle(number - 1, before, fl_ctx, abort_signal)
        for name in names:
            self._tracks[name].open(self._candidates)

        started = time.monotonic()
        question = Question(
            f"round {number}", exchange.TRAIN, number, self._registered(), self._job.min_sites, names,
            payload=lambda site: {name: self._tracks[name].payload(site) for name in names},
        )  # fmt: skip
        answers = self._ask(question, fl_ctx, abort_signal)
        if abort_signal.triggered:
            return
        reports = {site: meta.get("reports", {}) for site, meta in answers.accepted.items()}
        self._record.add_validation(number - 1, self._tracks, reports)
        self._aggregator.aggregate(fl_ctx)
        self._round = number
        others = {s: self._unregistered.get(s, "not registered") if s in self._here else "absent" for s in self._sites}
        missing = {s: r for s, r in (others | answers.missing).items() if s not in answers.accepted}
        row = self._record.add_round(number, answers.accepted, missing, time.monotonic() - started, answers.attempts)
        self._record.add_bytes(answers.down, self._aggregator.up_bytes)
        shares = self._aggregator.shares()
        self._accepted_log.add(number, {site: shares[site] for site in answers.accepted}, self._aggregator.norms)
        self._checkpoint()
        self._announce(row, fl_ctx)
        cleanup_memory()

    def _checkpoint(self) -> None:
        try:
            save(self._checkpoints, self._round, self._tracks, self._record, self._job)
        except UserError as e:
            raise UserError(f"{e}; {GO_ON}") from e

    def _announce(self, row: dict, fl_ctx: FLContext) -> None:
        """One log line a site, one progress line, and the curves of what is complete: the round before."""
        number = row["round"]
        for site in row["answered"]:
            losses = " ".join(f"loss_{t}={by[site]:.4f}" for t, by in row["loss"].items() if site in by)
            self.log_info(fl_ctx, f"fedsm round={number} site={site} accepted {losses}")
        entering = self._record.history[number - 2].get("score", {}) if number > 1 else {}
        told = {key: row[key] for key in ("round", "seconds", "answered", "missing", "attempts")}
        self._progress.tell("round", score=entering, **told)
        send_losses(self, row, fl_ctx)
        if number > 1:
            send_validation(self, self._record.history[number - 2], fl_ctx)

    def _settle(self, last: int, names: list[str], fl_ctx: FLContext, abort_signal: Signal) -> None:
        """Ends the training of these tracks after round `last`: their last models are validated, kept ones fetched."""
        self._progress.tell("validating")
        question = Question(
            "validation of the last models", exchange.VALIDATE, last, self._registered(), self._job.min_sites, names,
            payload=lambda site: {name: self._tracks[name].final_payload(site) for name in names},
        )  # fmt: skip
        answers = self._ask(question, fl_ctx, abort_signal)
        if abort_signal.triggered:
            return
        self._warn(fl_ctx)
        self._record.add_once("delivery_down_bytes", answers.down)
        self._record.add_once("delivery_up_bytes", self._aggregator.up_bytes)
        reports = {site: meta.get("reports", {}) for site, meta in answers.accepted.items()}
        self._record.add_validation(last, self._tracks, reports)
        for name in names:
            self._tracks[name].close_validation({site: r[name] for site, r in reports.items() if name in r})
        self._checkpoint()
        send_validation(self, self._record.history[last - 1], fl_ctx)

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

        def judge(site: str, meta: dict) -> str | None:
            counts = self._aggregator.registered[site]
            return evaluation_problem(meta.get("evaluation"), self._job, self._sites, list(candidates), counts)

        question = Question(
            "evaluation of the candidates", exchange.EVALUATE, last, self._registered(), self._job.min_sites,
            payload=lambda site: candidates, judge=judge, timeout=self._job.evaluate_timeout,
        )  # fmt: skip
        answers = self._ask(question, fl_ctx, abort_signal)
        if abort_signal.triggered:
            return
        evaluations = {s: answers.accepted[s]["evaluation"] for s in self._sites if s in answers.accepted}
        self._write(candidates, summarize(evaluations, self._job, self._sites), answers)
        self.log_info(fl_ctx, f"fedsm finished: results and super model are in {self._folder}")

    def _candidates(self) -> dict[str, Tensors]:
        return best_models(self._tracks, self._record, self._checkpoints)

    def _write(self, candidates: dict[str, Tensors], summary: dict, answers: Answers) -> None:
        write_super_model(self._folder, self._job, self._record, self._tracks, candidates, summary, self._record.images)
        measured = measurements(self._record, self._started, self._start_rss)
        measured["wire"] |= {"evaluation_down_bytes": answers.down}
        measured["missing_in_evaluation"] = answers.missing
        measured["privacy"] = self._aggregator.privacy
        write_results(self._folder, self._job, self._record, self._tracks, summary, measured)
        self._progress.tell("finished", results="results.json")
