"""Who submitted the running job, as FLARE authenticated the person."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import JobMetaKey, get_job_meta_study

from fedsm.core.errors import UserError
from fedsm.core.task_names import SIMULATED_JOB
from fedsm.server.owner import Submitter


def submitter_of(fl_ctx: FLContext) -> Submitter | None:
    """The submitter of the running job; None in the simulator.

    A server writes the submitter into every job's meta, over what the job itself says there; the simulator writes none.
    The id alone is no sign of the simulator: a lead may give a job any id.

    Raises:
        UserError: FLARE does not say.
    """
    meta = fl_ctx.get_prop(FLContextKey.JOB_META)
    keys = (JobMetaKey.SUBMITTER_NAME.value, JobMetaKey.SUBMITTER_ORG.value, JobMetaKey.SUBMITTER_ROLE.value)
    found: list[Any] = [meta.get(key) for key in keys] if isinstance(meta, dict) else [None]
    if fl_ctx.get_job_id() == SIMULATED_JOB and not any(found):
        return None
    if not all(isinstance(value, str) and value for value in found):
        raise UserError("FLARE does not say who submitted this job", remedy="submit it with a startup kit of your own")
    name, org, role = found
    return Submitter(name, org, role, get_job_meta_study(meta))
