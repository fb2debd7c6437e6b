"""The server's side of a FedSM job: rounds, quorum, deadlines, checkpoints, the super model."""

from __future__ import annotations

import contextlib
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
from fedsm.core.model_store import FOLDER as MODELS
from fedsm.core.model_store import IN_MEMORY, ModelStore, OnDisk
from fedsm.core.natural_order import natural_key
from fedsm.core.private_files import keep_private
from fedsm.core.settings import JobSettings
from fedsm.core.text import one_line
from fedsm.flare import watch
from fedsm.flare.aggregator import REFUSED, SoftPullAggregator
from fedsm.flare.artefacts import write_artefacts
from fedsm.flare.compat import intake
from fedsm.flare.compat.fatal_codes import take_fatal_codes_as_failures
from fedsm.flare.compat.memory import job_cells, received_to_disk
from fedsm.flare.compat.simulator import hurry
from fedsm.flare.compat.site_events import guard_events
from fedsm.flare.compat.task_requests import hold_requests, ring
from fedsm.flare.compat.tensors import enable_tensors
from fedsm.flare.curves import check_receiver, send_earlier, send_validation
from fedsm.flare.round import Round
from fedsm.flare.run import Run
from fedsm.flare.settle import settle, try_candidates
from fedsm.flare.signing import sign_finished
from fedsm.flare.simulated_data import check_simulated_data
from fedsm.flare.submitter import submitter_of
from fedsm.flare.task_runner import GO_ON, TooFewAnswers
from fedsm.nets import build_unet
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.checkpoint_dirs import NoCheckpoint, checkpoint_dir, checkpoints_of, hand_over, remove_earlier
from fedsm.server.checks import most_message
from fedsm.server.memory import return_freed_memory
from fedsm.server.outcome import measurements, write_results, write_super_model
from fedsm.server.record import AcceptedLog, Progress, RunRecord
from fedsm.server.results import summarize
from fedsm.server.resume import resume
from fedsm.tracks import playing, score_names, server_tracks


class FedSMController(Controller):
    """Runs a FedSM job: registers the sites, trains the rounds, and lets every site evaluate the candidates.

    Every site gets its own payload each round (its personal model), so there is one task for each site. A round is
    closed when all answered or at its deadline; it needs `min_sites` good answers, and sites that gave none are asked
    again `round_retries` times before the job stops with its checkpoint. A site that misses a round stays in the run
    and is asked again. Results that come late are refused. What sites send is received to the server's disk and read
    one answer at a time, so that its memory holds K + 1 models however many answer at once.

    A round is in `flare/round.py`, the state of a run in `flare/run.py`, the end of training in `flare/settle.py`.

    Args:
        settings: the job's settings as a plain dict; see `fedsm.core.settings.JobSettings`.
        aggregator_id: the component that checks and merges the answers.
        resume_from: what to go on from: `job:` and the ids of the submitter's earlier jobs; in the simulator also a
            `checkpoints` folder. See `server/checkpoint_dirs.py`.
        from_round: the round to go on from, with `resume_from`; default: the newest that there is a checkpoint of.
    """

    def __init__(
        self, settings: dict, aggregator_id: str = "aggregator", resume_from: str = "", from_round: int | None = None
    ):
        super().__init__()
        guard_events()
        hurry()
        self.from_round = from_round
        self.settings = settings
        self.aggregator_id = aggregator_id
        self.resume_from = resume_from
        self._run: Run | None = None
        self._on_disk: OnDisk | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Called by FLARE at START_RUN."""
        keep_private()
        enable_tensors()
        take_fatal_codes_as_failures()
        intake.survive_undecodable()
        hold_requests()
        self._started = time.monotonic()
        workspace, job_id = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        self._root, self._folder = Path(workspace.get_root_dir()), Path(workspace.get_run_dir(job_id))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._submitter = submitter_of(fl_ctx)
        self._checkpoint_dir = checkpoint_dir(self._root, self._folder, job_id, self._submitter)
        self._progress = Progress(self._folder / "progress.jsonl")
        watch.serve(fl_ctx.get_engine(), self._progress)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Sites that wait for a task are told that there is none any more."""
        ring()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The job, from the first registration to the super model."""
        try:
            with received_to_disk(fl_ctx.get_engine(), fl_ctx.get_job_id()):
                self._play(abort_signal, fl_ctx)
        finally:
            if self._on_disk:
                self._on_disk.remove()
            with contextlib.suppress(OSError):  # a full disk: the files stay where they were written
                hand_over(self._checkpoint_dir, self._folder)

    def _play(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            run = self._run = self._prepare(abort_signal, fl_ctx)
            run.register(run.here, run.job.min_sites)
            run.checkpoint()
            run.progress.tell("registered", round=run.last_round)
            for number in range(run.last_round + 1, run.job.rounds + 1):
                if run.stopped:
                    break
                Round(run, number).play()
            if not run.stopped:
                self._finish(run)
        except TooFewAnswers as e:
            self._stop(str(e), fl_ctx, can_go_on=e.can_go_on)
        except NoCheckpoint as e:
            self._stop(str(e), fl_ctx, no_checkpoint=True)
        except UserError as e:
            self._stop(str(e), fl_ctx)
        except (OSError, SafetensorError) as e:
            full = UserError(f"nothing can be written to {self._folder} ({e})", remedy=f"make room, then {GO_ON}")
            self._stop(str(full), fl_ctx)

    def _stop(self, reason: str, fl_ctx: FLContext, **why: bool) -> None:
        """Ends the job; `can_go_on`: it may go on from its last checkpoint as it is; `no_checkpoint`: there is none."""
        with contextlib.suppress(OSError):  # it may be the disk that is full
            self._progress.tell("failed", reason=reason, **({"can_go_on": False} | why))
        self.system_panic(reason, fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Refuses an answer that came after its task was closed."""
        reason = one_line(f"its answer to {task_name} came too late")
        if self._run and self._run.note(REFUSED, client.name, reason):
            self.log_warning(fl_ctx, f"fedsm site={client.name} refused: {reason}")

    def _prepare(self, abort_signal: Signal, fl_ctx: FLContext) -> Run:
        """Reads the settings, finds the connected sites and builds the tracks, new or from a checkpoint."""
        engine = fl_ctx.get_engine()
        job = JobSettings.from_dict(self.settings)
        clients = sorted((c.name for c in engine.get_clients()), key=natural_key)
        check_simulated_data(fl_ctx, clients)
        check_receiver(fl_ctx)
        build_unet(job.task)  # loads the libraries now, so that they do not count as memory growth of the run
        return_freed_memory()
        self._start_rss = psutil.Process().memory_info().rss
        aggregator = engine.get_component(self.aggregator_id)
        if not isinstance(aggregator, SoftPullAggregator):
            raise UserError(f"component {self.aggregator_id!r} is no SoftPullAggregator")
        checkpoints = Checkpoints(self._checkpoint_dir / FOLDER, job.keep_checkpoints)
        store: ModelStore = IN_MEMORY
        if job.personal_models == "disk":
            store = self._on_disk = OnDisk(self._checkpoint_dir / MODELS)
        accepted_log = AcceptedLog(self._checkpoint_dir)
        if self.resume_from:
            source = checkpoints_of(self.resume_from, self._root, self._submitter)
            tracks, record, last_round = resume(job, source, checkpoints, clients, self.from_round, store)
            accepted_log.adopt(source.parent, last_round)
            remove_earlier(source, self._checkpoint_dir, self._root, self._submitter)
            send_earlier(self, record.history, fl_ctx)
            self.log_info(fl_ctx, f"fedsm resumes run {record.run_id} after round {last_round}")
        else:
            tracks, last_round = server_tracks(job, clients, store), 0
            record = RunRecord(uuid.uuid4().hex[:12], clients)
        here = [site for site in record.sites if site in clients]
        run = Run(
            self, fl_ctx, abort_signal, job, self._folder, tracks, record, last_round, here, aggregator, checkpoints,
            self._progress, accepted_log, store,
        )  # fmt: skip
        intake.limit_messages(job_cells(engine), most_message(tracks))
        cleanup_memory()
        absent = [site for site in run.sites if site not in here]
        if absent:
            self.log_warning(fl_ctx, f"fedsm absent: {', '.join(absent)}; they keep their models and their places")
        told = {"rounds": job.rounds, "round": last_round, "scores": score_names(job)}
        self._progress.tell("started", sites=run.sites, absent=absent, **told)
        return run

    def _finish(self, run: Run) -> None:
        """Validates the last models, lets the sites evaluate the candidates, writes super model and results."""
        settle(run, run.last_round, playing(run.tracks, run.last_round))
        if run.stopped:
            return
        send_validation(self, run.record.history[-1], run.fl_ctx)
        outcome = try_candidates(run)
        if run.stopped:
            return
        validation, test = outcome.validation, outcome.test
        summary = summarize(validation.scores, test.scores, outcome.policy, run.job, run.sites)
        write_super_model(run.folder, run.job, run.record, outcome.candidates, summary)
        write_artefacts(run.folder, run.record, summary, run.fl_ctx)
        measured = measurements(run.record, self._started, self._start_rss)
        down = {s: validation.results.down.get(s, 0) + n for s, n in test.results.down.items()}
        measured["wire"] |= {"evaluation_down_bytes": down}
        measured["missing_in_evaluation"] = validation.results.missing | test.results.missing
        measured["privacy"] = run.aggregator.registry.privacy
        write_results(run.folder, run.job, run.record, summary, measured)
        sign_finished(run, self._submitter, self._checkpoint_dir)
        run.progress.tell("finished", results="results.json")
        run.log_info(f"fedsm finished: results and super model are in {run.folder}")
