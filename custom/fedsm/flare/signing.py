"""The signed record of a finished run, by the key of the server that ran it."""

from __future__ import annotations

from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.signing import owner_signer, server_signer
from fedsm.core.text import one_line
from fedsm.flare.run import Run
from fedsm.server.owner import Submitter
from fedsm.server.run_record import sign_run


def sign_finished(run: Run, submitter: Submitter | None, checkpoints: Path) -> None:
    """Signs a run whose results are written. A server that cannot sign has still trained, so this only logs it.

    Args:
        run: the run.
        submitter: who submitted the job; None in the simulator.
        checkpoints: where the server keeps checkpoints and log of the run.
    """
    workspace = run.fl_ctx.get_engine().get_workspace()
    try:
        if submitter is None:
            signer = owner_signer()
        else:
            signer = server_signer(Path(workspace.get_site_config_dir()), Path(workspace.get_startup_kit_dir()))
            if signer.voucher is None:
                run.controller.log_warning(run.fl_ctx, "fedsm: no certificate vouches for the key of the signed record")
        sign_run(
            run.folder, run.job, run.sites, signer, run_id=run.record.run_id, forgotten=run.record.forgotten,
            job_id=run.fl_ctx.get_job_id(), submitter=submitter, checkpoints=checkpoints,
        )  # fmt: skip
    except (OSError, UserError, ValueError) as e:
        run.controller.log_error(run.fl_ctx, f"fedsm: the run has no signed record: {one_line(e)}")
