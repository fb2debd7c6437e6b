"""A job that removes a site from the checkpoints that the server keeps of a run. The sites have no task in it."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.names import check_site_name
from fedsm.core.private_files import keep_private
from fedsm.flare.compat.simulator import hurry
from fedsm.flare.compat.site_events import guard_events
from fedsm.flare.submitter import submitter_of
from fedsm.server.checkpoint import Checkpoints
from fedsm.server.checkpoint_dirs import checkpoints_of
from fedsm.server.forget import Forgetting
from fedsm.server.incoming import sweep_incoming
from fedsm.server.record import Progress

FILE = "forgotten.json"


class ForgetController(Controller):
    """Rewrites the checkpoint of a run on the server's disk without a site; see `fedsm.server.forget`.

    Args:
        site: who leaves.
        run: `job:` and the ids of the run's jobs, the newest first. They must be the submitter's.
    """

    def __init__(self, site: str, run: str):
        super().__init__()
        guard_events()
        hurry()
        self.site = site
        self.run = run

    def start_controller(self, fl_ctx: FLContext) -> None:
        keep_private()
        workspace = fl_ctx.get_engine().get_workspace()
        self._root, self._folder = Path(workspace.get_root_dir()), Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        self._folder.mkdir(parents=True, exist_ok=True)
        sweep_incoming(self._root)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do: nothing is left open."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        try:
            check_site_name(self.site, "the job's `site`")
            checkpoints = checkpoints_of(self.run, self._root, submitter_of(fl_ctx))
            state = Checkpoints(checkpoints).load()
            # The site is there already if an interrupted command is repeated.
            if state is None or self.site not in state["record"]["forgotten"]:
                Forgetting(checkpoints.parent, self.site).write(checkpoints.parent)
        except UserError as e:
            Progress(self._folder / "progress.jsonl").tell("failed", reason=str(e))
            self.system_panic(str(e), fl_ctx)
            return
        write_json(self._folder / FILE, {"site": self.site})
        self.log_info(fl_ctx, f"fedsm site={self.site} was forgotten")

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Nothing to do: no site has a task."""
