"""FLARE's side of a site: takes a task's shareable, lets the trainer work, answers."""

from __future__ import annotations

import gc
import os
import time
import traceback
from pathlib import Path

from nvflare.apis.dxo import DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedsm import exchange
from fedsm.client.site_settings import load_site_settings
from fedsm.client.site_trainer import Aborted, SiteTrainer
from fedsm.errors import UserError
from fedsm.settings import JobSettings

_SIMULATED_JOB = "simulate_job"  # FLARE's job id in the simulator, where all sites share one machine


class FedSMExecutor(Executor):
    """Does the four tasks of a FedSM job at a site.

    It takes no arguments: the job's settings come with each task, the site's own from `fedsm_site.yaml`.
    What leaves the site: weight differences, sums of image descriptors, counts and mean scores. No image,
    no file name, no path: errors are sent in their public form and logged in full at the site.
    """

    def __init__(self):
        super().__init__()
        self._trainer: SiteTrainer | None = None
        self._trainer_key: tuple | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext):
        if event_type == EventType.START_RUN:
            exchange.enable_tensors()
        elif event_type == EventType.END_RUN:
            self._trainer = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        started = time.time()
        try:
            gc.collect()  # FLARE leaves the last task's messages in cycles, each with its payload
            meta, payload = exchange.unpack(shareable)
            exchange.forget(shareable)
            trainer = self._get_trainer(meta, fl_ctx)
            reply = self._do(task_name, trainer, meta, payload, abort_signal)
        except Aborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as e:
            # Kits stream the log of errors to the server: what names files is logged as a warning, which stays here.
            self.log_warning(fl_ctx, str(e) if isinstance(e, UserError) else traceback.format_exc(), fire_event=False)
            public = e.public if isinstance(e, UserError) else type(e).__name__
            self.log_error(fl_ctx, f"{task_name} failed: {public}", fire_event=False)
            reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply.set_header(exchange.ERROR_HEADER, public)
            return reply
        self.log_info(fl_ctx, f"fedsm task={task_name} round={meta['round']} seconds={time.time() - started:.1f}")
        return reply

    def _do(self, task: str, trainer: SiteTrainer, meta: dict, payload: dict, abort_signal: Signal) -> Shareable:
        number = meta["round"]
        answer = {"round": number, "images": trainer.counts()}
        if task == exchange.REGISTER:
            return exchange.pack(trainer.register(), answer, DataKind.STATISTICS)
        if task == exchange.TRAIN:
            updates, reports, losses = trainer.train(number, payload, lambda: abort_signal.triggered, meta["tracks"])
            return exchange.pack(updates, answer | {"reports": reports, "losses": losses}, DataKind.WEIGHT_DIFF)
        if task == exchange.VALIDATE:
            delivered, reports = trainer.finish(number, payload, meta["tracks"])
            kinds = {n: DataKind.STATISTICS if trainer.tracks[n].sums else DataKind.WEIGHT_DIFF for n in delivered}
            return exchange.pack(delivered, answer | {"reports": reports}, kinds)
        if task == exchange.EVALUATE:
            return exchange.pack({}, answer | {"evaluation": trainer.evaluate(payload)})
        raise UserError(f"unknown task {task!r}: server and site run different versions of fedsm")

    def _get_trainer(self, meta: dict, fl_ctx: FLContext) -> SiteTrainer:
        """The trainer of this run, kept between tasks: it holds the data and Adam's moments."""
        name = fl_ctx.get_identity_name()
        key = (meta["run_id"], tuple(meta["sites"]), repr(meta["settings"]))
        if self._trainer is None or key != self._trainer_key:
            settings = JobSettings.from_dict(meta["settings"])
            workspace = fl_ctx.get_engine().get_workspace()
            simulated = fl_ctx.get_job_id() == _SIMULATED_JOB
            fair_share = max(1, (os.cpu_count() or 1) // (len(meta["sites"]) if simulated else 1))
            site = load_site_settings(
                Path(workspace.get_site_config_dir()), Path(workspace.get_root_dir()), name, fair_share
            )
            self.log_info(fl_ctx, f"site {name!r} computes on {site.device} with {site.threads} CPU threads")
            self._trainer = SiteTrainer(settings, site, name, meta["sites"].index(name), meta["sites"], meta["run_id"])
            self._trainer_key = key
            gc.collect()
            gc.freeze()  # what is loaded now stays: collecting the rest is then a matter of milliseconds
        return self._trainer
