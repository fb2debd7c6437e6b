"""FLARE's receiver for Weights & Biases, for the server's own curves, in the job's folder."""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext

from fedsm.core.errors import UserError
from fedsm.flare.compat.receivers import OWN_CURVES, OwnCurves, set_tracking_defaults

set_tracking_defaults()

from nvflare.app_opt.tracking.wandb.wandb_receiver import WandBReceiver  # noqa: E402  (it imports wandb)

_FROM_THE_JOB = ("project", "name", "group", "job_type", "config")
# Weights & Biases also collects the machine's name and load, the command, git, packages and what is printed.
_CURVES_ONLY = {
    "host": "server", "console": "off", "disable_git": True, "disable_code": True, "save_code": False, "symlink": False,
    "x_disable_machine_info": True, "x_disable_meta": True, "x_disable_stats": True, "x_save_requirements": False,
}  # fmt: skip


class WandBCurves(OwnCurves, WandBReceiver):
    """Sends the curves of a run to Weights & Biases.

    FLARE's own gives all that a job says to `wandb.init`: with it, folders to write to and an address to send to.

    Args:
        wandb_args: what the run is called: project, name, group, job_type, config.
        mode: offline (files in the job's folder) or online.

    Raises:
        UserError: another argument or mode.
    """

    def __init__(self, wandb_args: dict, mode: str = "offline"):
        if not isinstance(wandb_args, dict):
            raise UserError("wandb_args is no table of names and values")
        if unknown := sorted(set(wandb_args) - set(_FROM_THE_JOB)):
            raise UserError(f"wandb_args: {unknown[0]!r} is none of {', '.join(_FROM_THE_JOB)}")
        if mode not in ("online", "offline"):
            raise UserError(f"mode of wandb: {mode!r} is none of online, offline")
        super().__init__(dict(wandb_args), mode=mode, events=OWN_CURVES)

    def initialize(self, fl_ctx: FLContext) -> None:
        """Starts the run. By itself it would write to wherever the server was started."""
        folder = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
        self.wandb_args |= {"dir": folder, "settings": _CURVES_ONLY}
        super().initialize(fl_ctx)
