"""Row 16: the return code UNSAFE_JOB of one site ended the job, and nobody was named."""

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.private.fed.server.server_runner import ServerRunner

from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings

FATAL = [ReturnCode.UNSAFE_JOB, ReturnCode.TASK_UNKNOWN, ReturnCode.RUN_MISMATCH]


@pytest.fixture
def flare(monkeypatch):
    """FLARE's own list, put back after the test."""
    monkeypatch.setattr(ServerRunner, "ABORT_RETURN_CODES", list(FATAL))


@pytest.mark.parametrize("code", FATAL)
def test_a_code_that_flare_holds_for_fatal_costs_that_site_its_rounds(tmp_path, data_root, flare, code):
    """The run finishes without the site, which is named with its code, and FLARE's runner ends no job for it."""

    def fault(site, task, shareable, work):
        return make_reply(code) if site.name == HOSTILE and task == TRAIN else work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=2), SITES, fault=fault).run()
    assert federation.panic is None and code not in ServerRunner.ABORT_RETURN_CODES
    assert [row["missing"] for row in results_of(federation)["validation"]["history"]] == [{HOSTILE: code}] * 2


def test_too_many_of_them_stop_the_job_with_their_names(tmp_path, data_root, flare):
    def fault(site, task, shareable, work):
        return make_reply(ReturnCode.UNSAFE_JOB) if site.name != "site-1" and task == TRAIN else work()

    settings = small_settings(rounds=2, round_retries=0)
    federation = Federation(tmp_path, data_root, settings, SITES, fault=fault).run()
    assert "(site-2, site-3: UNSAFE_JOB)" in federation.panic
