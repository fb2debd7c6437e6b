"""Workaround: `fedsm.flare.compat.fatal_codes`.

Symptom: one client answers with the return code `UNSAFE_JOB`, `TASK_UNKNOWN` or `RUN_MISMATCH`, and the job of all
sites ends. No setting says otherwise. FLARE 2.9.0. With the workaround: `tests/attacks/test_return_codes.py`.
"""

from unittest.mock import Mock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import make_reply
from nvflare.private.fed.server import server_runner

from tests.helpers.pristine import pristine


@pytest.mark.parametrize("code", [ReturnCode.UNSAFE_JOB, ReturnCode.TASK_UNKNOWN, ReturnCode.RUN_MISMATCH])
def test_flares_own_runner_ends_the_job_of_all(code):
    runner_class = pristine(server_runner).ServerRunner
    runner = Mock(spec=runner_class, job_id="job", status="started", ABORT_RETURN_CODES=runner_class.ABORT_RETURN_CODES)
    fl_ctx = FLContextManager(identity_name="server", job_id="job").new_context()
    fl_ctx.set_peer_context(FLContextManager(identity_name="site-3", job_id="job").new_context())
    runner_class._process_submission(runner, Client("site-3", "token"), "train", "1", make_reply(code), fl_ctx)
    assert code in runner.system_panic.call_args.kwargs["reason"]
