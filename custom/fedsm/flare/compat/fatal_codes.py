"""One site's return code does not end the job.

FLARE 2.9's server runner ends a whole job when one client answers with `UNSAFE_JOB`, `TASK_UNKNOWN` or `RUN_MISMATCH`
(`ServerRunner.ABORT_RETURN_CODES`), and no setting changes that. Any participant could end every run with one message.
Here such an answer reaches the controller like any other failure of a site: it is refused, the site is named, and the
round goes on with the good answers; if there are too few, the job stops and says which sites failed and why.
"""

from __future__ import annotations

from nvflare.private.fed.server.server_runner import ServerRunner


def take_fatal_codes_as_failures() -> None:
    """Lets the server of this job, which has a process of its own, treat every return code as that site's failure."""
    ServerRunner.ABORT_RETURN_CODES = []
