"""A site's side of FLARE: receives a task's shareable, passes it to the trainer, and sends the answer."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nvflare.apis.dxo import DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedsm.client.failures import explain
from fedsm.client.site_settings import INSIDE, PROCESS, SiteLocation, load_site_settings
from fedsm.client.trainer_link import TrainerLink
from fedsm.client.work import Aborted, check_task
from fedsm.core.errors import UserError
from fedsm.core.private_files import keep_private
from fedsm.flare import exchange
from fedsm.flare.compat.tensors import enable_tensors

if TYPE_CHECKING:
    from fedsm.client.workers import Worker


class _Unready(Exception):
    """The site's own settings cannot be used: a person there must correct them."""

    def __init__(self, reason: UserError):
        self.reason = reason
        super().__init__(str(reason))


class FedSMExecutor(Executor):
    """Does the tasks of a FedSM job at a site: those of training, or the one of an evaluation.

    It takes no arguments: the job's settings come with each task, the site's own from `fedsm_site.yaml`.
    What leaves the site: weight differences, sums of image descriptors, counts and mean scores. No image,
    no file name, no path: errors are sent in their public form and logged in full at the site.
    """

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Worker | TrainerLink | None = None
        self._trainer_key: tuple | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's START_RUN and END_RUN."""
        if event_type == EventType.START_RUN:
            keep_private()
            enable_tensors()
        elif event_type == EventType.END_RUN:
            self._close()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        started = time.monotonic()
        try:
            gc.collect()  # FLARE leaves the last task's messages in cycles, each with its payload
            meta, payload = exchange.unpack(shareable)
            exchange.forget(shareable)
            trainer = self._get_trainer(task_name, meta, fl_ctx)
            answer = trainer.do(task_name, meta, payload, lambda: abort_signal.triggered)
        except Aborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except Exception as e:
            failure = e.reason if isinstance(e, _Unready) else explain(e)
            # Kits stream the log of errors to the server: what names files is logged as a warning, which stays here.
            self.log_warning(fl_ctx, str(failure), fire_event=False)
            self.log_error(fl_ctx, f"{task_name} failed: {failure.public}", fire_event=False)
            reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply.set_header(exchange.ERROR_HEADER, failure.public)
            reply.set_header(exchange.UNREADY_HEADER, isinstance(e, _Unready))
            return reply
        self.log_info(fl_ctx, f"fedsm task={task_name} round={meta['round']} seconds={time.monotonic() - started:.1f}")
        kinds = {n: DataKind.STATISTICS if n in answer.sums else DataKind.WEIGHT_DIFF for n in answer.tracks}
        return exchange.pack(answer.tracks, answer.meta, kinds)

    def _get_trainer(self, task: str, meta: dict, fl_ctx: FLContext) -> Worker | TrainerLink:
        """The trainer of this run, kept between tasks: it holds the data and Adam's moments."""
        name = fl_ctx.get_identity_name()
        run_id, sites = check_task(meta)
        key = (run_id, tuple(sites), repr(meta["settings"]))
        if self._trainer is None or key != self._trainer_key:
            self._close()
            workspace = fl_ctx.get_engine().get_workspace()
            simulated = bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))  # a lead may give a job any id
            fair_share = max(1, (os.cpu_count() or 1) // (len(sites) if simulated else 1))
            location = SiteLocation(
                workspace.get_site_config_dir(), workspace.get_root_dir(), name, fair_share, simulated
            )
            try:
                site = load_site_settings(Path(location.local), Path(location.workspace), *location[2:])
            except UserError as e:
                raise _Unready(e) from e
            where = site.trainer or (INSIDE if simulated and len(site.devices) < 2 else PROCESS)
            devices = ", ".join(map(str, site.devices))
            self.log_info(
                fl_ctx, f"site {name!r} computes on {devices} with {site.threads} CPU threads, trainer: {where}"
            )
            self._trainer = TrainerLink(location) if where == PROCESS else _build_inside(location, task, meta)
            self._trainer_key = key
            gc.collect()
            gc.freeze()  # what is loaded now stays, so a collection of the rest takes only milliseconds
        return self._trainer

    def _close(self) -> None:
        if isinstance(self._trainer, TrainerLink):
            self._trainer.close()
        self._trainer = None


def _build_inside(location: SiteLocation, task: str, meta: dict) -> Worker:
    """A worker in this process. Beside a trainer's own process, what it loads would only cost a second time."""
    from fedsm.client.workers import build_worker

    return build_worker(location, task, meta)
