"""Why a job failed that nobody followed: `fedsm status` says it from what the server keeps."""

import json
from types import SimpleNamespace

import pytest

from app_fedsm.cli.main import main
from app_fedsm.federation.failure import failure_of
from app_fedsm.federation.remote import reason_of

LOG = """2026-11-18 11:00:35 - ServerRunner - INFO - got result from client site-1
2026-11-18 11:00:35 - ServerRunner - ERROR - [run=1] - Aborting current RUN due to FATAL_SYSTEM_ERROR received: no data
2026-11-18 11:00:36 - ServerRunner - INFO - done
"""
FAILED = "FINISHED:EXECUTION_EXCEPTION"
REFUSED = "FINISHED:FAILED_TO_RUN"


class Server:
    """A server that keeps two jobs that have ended; notes whose log was read."""

    def __init__(self):
        self.read = []
        self.jobs = [
            {"job_id": "old", "job_name": "first", "status": FAILED, "submit_time": "1"},
            {"job_id": "new", "job_name": "second", "status": FAILED, "submit_time": "2"},
        ]

    def get_job_logs(self, job_id, target):
        self.read.append(job_id)
        if job_id == "gone":
            raise RuntimeError("no such job")
        return {"logs": {"server": "" if job_id == "refused" else LOG}}

    def get_job_meta(self, job_id):
        if job_id == "gone":
            raise RuntimeError("no such job")
        return {"job_deploy_detail": ["server: OK", "site-2: BYOC not permitted"], "status": FAILED}

    def get_connected_client_list(self):
        return []

    def list_jobs(self):
        return self.jobs

    def close(self):
        pass


@pytest.mark.parametrize(
    ("job", "status", "reason"),
    [
        ("new", FAILED, "no data"),
        ("refused", REFUSED, "site-2 refused the job: BYOC not permitted"),
        ("gone", FAILED, None),
        ("new", "FINISHED:COMPLETED", None),
        ("new", "RUNNING", None),
    ],
)
def test_the_reason(job, status, reason):
    server = Server()
    assert failure_of(server, job, status) == reason
    assert bool(server.read) == (status in (FAILED, REFUSED)), "all that is stored is read only of a job that failed"


def test_status_says_it_of_the_newest_job(tmp_path, monkeypatch, capsys):
    server = Server()
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", lambda *given, **more: server)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text(json.dumps({"admin": {"host": "localhost", "port": 1}}))
    assert main(["status", "--kit", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"first old {FAILED}", f"second new {FAILED}: no data"]
    assert server.read == ["new"]
    assert main(["status", "--kit", str(tmp_path), "--format", "json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["data"]["jobs"]
    assert [job["reason"] for job in jobs] == [None, "no data"]


@pytest.mark.parametrize(
    ("status", "runs", "last_line"),
    [
        ("SUBMITTED", False, "`fedsm fetch {}` follows it to its end"),
        ("RUNNING", True, "`fedsm fetch {}` follows it to its end"),
        ("RUNNING", False, "`fedsm resume {}` goes on from its last checkpoint"),
        ("FINISHED:COMPLETED", False, "`fedsm fetch {}` downloads its result"),
        (FAILED, False, "`fedsm resume {}` goes on from its last checkpoint"),
    ],
)
def test_status_says_what_to_do_after_the_leads_machine_was_closed(
    tmp_path, monkeypatch, capsys, status, runs, last_line
):
    """Nobody followed the job meanwhile: it goes on, has ended, or was lost with its server."""
    job_id = "0a0a0a0a-1111-4222-8333-444444444444"
    server = Server()
    server.get_job_meta = lambda job_id: {"status": status}
    server.get_system_info = lambda: SimpleNamespace(job_info=[SimpleNamespace(job_id=job_id)] if runs else [])
    monkeypatch.setattr("nvflare.fuel.flare_api.flare_api.new_secure_session", lambda *given, **more: server)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_admin.json").write_text(json.dumps({"admin": {"host": "localhost", "port": 1}}))
    note = {"job_id": job_id, "kit": str(tmp_path), "settings": {}, "sites": ["a", "b"], "byoc": False}
    (tmp_path / "run.json").write_text(json.dumps(note | {"resources": {}, "earlier": []}))
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last_line.format(tmp_path)
    assert main(["status", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["command"] in last_line.format(tmp_path)


def test_a_question_that_came_too_early_is_no_reason(tmp_path):
    """FLARE logs it as an error; the process of the job was killed."""
    (tmp_path / "log").write_text("t - AppCommandProcessor - ERROR - no app command func for topic fedsm.progress\n")
    assert reason_of(tmp_path / "none", tmp_path / "log", {"status": FAILED}) == (
        f"FLARE says {FAILED}; see {tmp_path / 'log'}"
    )
