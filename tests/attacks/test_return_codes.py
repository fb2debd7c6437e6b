"""Row 16: the return code UNSAFE_JOB of one site ended the job, and nobody was named."""

import json
from unittest.mock import MagicMock, Mock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import make_reply
from nvflare.private.fed.server.server_runner import ServerRunner

from fedsm.flare.evaluation import FILE
from tests.helpers.attack_jobs import run_evaluation
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings

FATAL = [ReturnCode.UNSAFE_JOB, ReturnCode.TASK_UNKNOWN, ReturnCode.RUN_MISMATCH]


@pytest.fixture
def flare(monkeypatch):
    """FLARE's own list, put back after the test."""
    monkeypatch.setattr(ServerRunner, "ABORT_RETURN_CODES", list(FATAL))


def ends_the_job(code: str) -> bool:
    """Whether FLARE's own runner, which gets each answer before our controller does, ends the job for this code."""
    runner = Mock(spec=ServerRunner, job_id="job", ABORT_RETURN_CODES=ServerRunner.ABORT_RETURN_CODES)
    runner.wf_lock, runner.current_wf = MagicMock(), None
    fl_ctx = FLContextManager(identity_name="server", job_id="job").new_context()
    fl_ctx.set_peer_context(FLContextManager(identity_name=HOSTILE, job_id="job").new_context())
    ServerRunner._process_submission(runner, Client(HOSTILE, "token"), TRAIN, "1", make_reply(code), fl_ctx)
    return runner.system_panic.called


@pytest.mark.parametrize("code", FATAL)
def test_a_code_that_flare_holds_for_fatal_costs_that_site_its_rounds(tmp_path, data_root, flare, code):
    """The run finishes without the site, which is named with its code, and FLARE's runner ends no job for it."""
    assert ends_the_job(code)

    def fault(site, task, shareable, work):
        return make_reply(code) if site.name == HOSTILE and task == TRAIN else work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=2), SITES, fault=fault).run()
    assert federation.panic is None and not ends_the_job(code)
    assert [row["missing"] for row in results_of(federation)["validation"]["history"]] == [{HOSTILE: code}] * 2


def test_too_many_of_them_stop_the_job_with_their_names(tmp_path, data_root, flare):
    def fault(site, task, shareable, work):
        return make_reply(ReturnCode.UNSAFE_JOB) if site.name != "site-1" and task == TRAIN else work()

    settings = small_settings(rounds=2, round_retries=0)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert "(site-2, site-3: UNSAFE_JOB)" in federation.panic


def test_the_same_in_an_evaluation(tmp_path, data_root, flare):
    def fault(site, task, shareable, work):
        return make_reply(ReturnCode.UNSAFE_JOB) if site.name == HOSTILE else work()

    job = run_evaluation(tmp_path, data_root, fault)
    assert job.panic is None and not ends_the_job(ReturnCode.UNSAFE_JOB)
    assert json.loads((job.run_folder / FILE).read_text())["missing"] == {HOSTILE: ReturnCode.UNSAFE_JOB}
