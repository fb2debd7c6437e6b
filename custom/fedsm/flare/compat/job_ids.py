"""A job's id names no folder of a kit.

FLARE 2.9 takes the id that a submitter writes into a job's `meta.json`, and works in the folder of that name in the
kit, at the server and at every site: it empties the folder before a job and removes it afterwards. So a lead without
any code could delete `startup`, `local`, everybody's checkpoints (`fedsm_runs`), or a hospital's list of the statistics
that it has given away (`fedsm_state`).

Kits that forbid code inside jobs list `JobIdGuard` in their `resources.json`: FLARE builds it when it starts. From then
on, only ids as FLARE itself gives them are accepted in that process.
"""

from __future__ import annotations

import re

from nvflare.apis import workspace
from nvflare.apis.fl_component import FLComponent
from nvflare.private.fed.server import job_meta_validator

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check_job_id(job_id: object) -> None:
    """In the place of FLARE's own check.

    Raises:
        ValueError: not an id as FLARE gives them.
    """
    if not isinstance(job_id, str) or not _UUID.fullmatch(job_id):
        raise ValueError("a job cannot choose its own id here: leave job_id out of meta.json")


class JobIdGuard(FLComponent):
    """Lets this process accept FLARE's own job ids only: for submitted jobs, and for folders of jobs."""

    def __init__(self) -> None:
        super().__init__()
        job_meta_validator.check_job_id = check_job_id
        workspace.check_job_id = check_job_id
