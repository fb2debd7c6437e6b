"""The server's side of a federated evaluation or audit: the super model goes to the sites, their reports come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.limits import shown
from fedsm.core.names import check_run_id
from fedsm.core.natural_order import natural_key
from fedsm.core.plain_json import reading
from fedsm.core.plain_values import MOST_PLAIN_MESSAGE
from fedsm.core.private_files import keep_private
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import AUDIT, SCORE
from fedsm.core.text import one_line
from fedsm.evaluation.evaluate import FILE, join
from fedsm.evaluation.membership import SITES_FILE
from fedsm.flare import exchange, watch
from fedsm.flare.artefacts import scores_of, write_cross_validation
from fedsm.flare.compat import intake
from fedsm.flare.compat.fatal_codes import take_fatal_codes_as_failures
from fedsm.flare.compat.memory import job_cells
from fedsm.flare.compat.simulator import hurry
from fedsm.flare.compat.site_events import guard_events
from fedsm.flare.compat.tensors import enable_tensors
from fedsm.flare.dispatch import Dispatcher
from fedsm.flare.identity import sender_of, sender_problem
from fedsm.flare.inbox import Inbox
from fedsm.selectors.policy import read_policy
from fedsm.server.audit_check import audit_problem
from fedsm.server.incoming import sweep_incoming
from fedsm.server.record import Progress
from fedsm.server.report_check import report_problem
from fedsm.super_model.artefact import load_super_model

MODEL = "super_model"  # in the configuration folder of the server's app


def _write_scores(job: EvaluationController, manifest: dict, reports: dict, missing: dict, fl_ctx: FLContext) -> Path:
    write_cross_validation(scores_of(reports), manifest["sites"], fl_ctx)
    write_json(job.folder / FILE, join(manifest, reports, job.part, job.seed) | {"missing": missing})
    return job.folder / FILE


def _write_audit(job: EvaluationController, manifest: dict, reports: dict, missing: dict, fl_ctx: FLContext) -> Path:
    write_json(job.folder / SITES_FILE, {"sites": reports, "missing": missing})
    return job.folder / SITES_FILE


@dataclass(frozen=True)
class _Kind:
    """What a site's report must be, and what becomes of all of them."""

    problem: Callable[[Any, dict, JobSettings, str, str], str | None]
    write: Callable[[EvaluationController, dict, dict, dict, FLContext], Path]


class EvaluationController(Controller):
    """Lets every site score a super model on its own images and joins the reports.

    A site that does not answer within the super model's `evaluate_timeout`, or whose report is wrong, is left out;
    `missing` of evaluation.json says why. One answer is enough.

    Args:
        part: train, validation, test or all: which of the sites' images.
        seed: of the bootstrap.
        task: what the sites do: score the models, or attack them for a privacy audit.
    """

    def __init__(self, part: str = "test", seed: int = 0, task: str = SCORE):
        super().__init__()
        guard_events()
        hurry()
        self.task = task
        self.part = part
        self.seed = seed

    def start_controller(self, fl_ctx: FLContext) -> None:
        keep_private()
        enable_tensors()
        take_fatal_codes_as_failures()
        intake.survive_undecodable()
        intake.expect(0)  # reports are plain values
        intake.limit_messages(job_cells(fl_ctx.get_engine()), MOST_PLAIN_MESSAGE)
        workspace, job_id = fl_ctx.get_engine().get_workspace(), fl_ctx.get_job_id()
        sweep_incoming(Path(workspace.get_root_dir()))
        self.folder = Path(workspace.get_run_dir(job_id))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._late_sites: set[str] = set()  # sites whose late answers were logged
        self._model_folder = Path(workspace.get_app_config_dir(job_id)) / MODEL
        self._progress = Progress(self.folder / "progress.jsonl")
        watch.serve(fl_ctx.get_engine(), self._progress)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do: nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            self._run(abort_signal, fl_ctx)
        except UserError as e:
            self._progress.tell("failed", reason=str(e))
            self.system_panic(str(e), fl_ctx)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        if self.task not in _KINDS:
            raise UserError(f"an evaluation has no task {shown(self.task)}")
        self._kind = _KINDS[self.task]
        self._model = load_super_model(self._model_folder)
        manifest, settings = self._model.manifest, self._model.settings
        sites = sorted((c.name for c in fl_ctx.get_engine().get_clients()), key=natural_key)
        with reading("the super model's manifest", "send a super model that is whole"):
            about = {key: manifest[key] for key in ("sites", "labels")}
        about |= read_policy(manifest, "the super model's manifest").to_dict()
        meta = {
            "round": 0,
            "run_id": check_run_id(manifest.get("run_id"), "the super model's manifest"),
            "sites": manifest["sites"],
            "settings": settings.to_dict(),
            "part": self.part,
            "seed": self.seed,
            "super_model": about | {"settings": {"gammas": list(settings.gammas)}},
        }
        self._reports: dict[str, dict] = {}
        self._refused: dict[str, str] = {}
        self._progress.tell("evaluating", sites=sites)
        silent = Dispatcher(self, fl_ctx, abort_signal).send(
            self.task,
            dict.fromkeys(sites, lambda: exchange.pack(self._model.networks, dict(meta))),
            settings.evaluate_timeout,
            Inbox(sites, self._accept),
        )
        if abort_signal.triggered:
            return
        missing = {site: reason for site, reason in (silent | self._refused).items() if site not in self._reports}
        for site, reason in missing.items():
            self.log_error(fl_ctx, f"fedsm evaluation site={site} missing: {reason}")
        if not self._reports:
            raise UserError("no site could be evaluated: " + "; ".join(f"{s}: {r}" for s, r in missing.items()))
        reports = {site: self._reports[site] for site in sites if site in self._reports}
        written = self._kind.write(self, manifest, reports, missing, fl_ctx)
        self.log_info(fl_ctx, f"fedsm evaluation finished: {written}")

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Refuses an answer that came after the task was closed, or that was never asked for."""
        reason = one_line(f"its answer to {task_name} came too late")
        if client.name not in self._late_sites:
            self._late_sites.add(client.name)
            self.log_warning(fl_ctx, f"fedsm site={client.name} refused: {reason}")

    def _accept(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Keeps a site's report, or the reason why not. A bad report does not affect those of other sites."""
        site = sender_of(fl_ctx)
        try:
            reason = sender_problem(fl_ctx) or self._take(site, shareable)
        except Exception as e:
            reason = f"malformed answer ({type(e).__name__})"
        if reason:
            self._refused[site] = one_line(reason)
        else:
            self._progress.tell("scored", site=site)
            self.log_info(fl_ctx, f"fedsm evaluation site={site} accepted")

    def _take(self, site: str, shareable: Shareable) -> str | None:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return str(shareable.get_header(exchange.ERROR_HEADER) or code)
        meta, tracks = exchange.unpack(shareable, most_bytes=0)
        if site in self._reports or tracks:
            return "a second answer" if site in self._reports else "it sends tensors, which nobody asked for"
        report = meta.get("report")
        reason = self._kind.problem(report, self._model.manifest, self._model.settings, site, self.part)
        if reason is None and isinstance(report, dict):
            self._reports[site] = report
        return reason


_KINDS = {SCORE: _Kind(report_problem, _write_scores), AUDIT: _Kind(audit_problem, _write_audit)}
