"""Workarounds around processes that were killed. FLARE's own server runs here, in this process and without a network.

Symptoms, FLARE 2.9.0:
- `fedsm.client.trainer_link`: the process of a job is killed at one site, and the job of all ends, whatever
  `min_clients` says.
- `fedsm.server.checkpoint`, `fedsm.server.resume`: the server is killed, and it had kept nothing of the job.
- `app_fedsm.federation.following`: after that the job is listed as RUNNING for ever and cannot be aborted.
- `app_fedsm.federation.remote`: a client that was started again registers, and never gets into the job that runs.
- `app_fedsm.federation.session`: a client that was killed stays in the server's list for ten minutes.
- `app_fedsm.federation.poc`: after a job the server waits 15 minutes for the last word of a site that was lost.
With the workarounds, and with real processes: `tests/deploy/test_faults.py`, `tests/deploy/test_poc.py`.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.job_def_manager_spec import RunStatus
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.private.defs import CellMessageHeaderKeys, ClientType, new_cell_message
from nvflare.private.fed.app.deployer.server_deployer import ServerDeployer
from nvflare.private.fed.client.client_executor import JobExecutor
from nvflare.private.fed.client.client_status import ClientStatus
from nvflare.private.fed.server import job_runner
from nvflare.private.fed.server.fed_server import FederatedServer

from tests.helpers.small_jobs import SITES

PROJECT = "check"


class Store(SimpleJobDefManager):
    """FLARE's list of jobs; it notes when the server looked into it."""

    def __init__(self, folder: str):
        super().__init__(uri_root=folder)
        self.looked = threading.Semaphore(0)

    def get_jobs_to_schedule(self, fl_ctx):
        self.looked.release()
        return super().get_jobs_to_schedule(fl_ctx)


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[FederatedServer]:
    """A server that FLARE has just started, on a list of jobs in which one was RUNNING before."""
    monkeypatch.delenv("NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", raising=False)
    monkeypatch.setattr(FederatedServer, "deploy", lambda *args, **kwargs: None)  # no network
    quick = SimpleNamespace(sleep=lambda seconds: time.sleep(0.01), monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(job_runner, "time", quick)
    for name in ("startup", "local"):
        (tmp_path / "server" / name).mkdir(parents=True)
    store = Store(str(tmp_path / "jobs"))
    parts = {SystemComponents.JOB_MANAGER: store, "job_store": FilesystemStorage()}
    engine = Mock(spec=ServerEngineSpec, get_component=parts.get)
    fl_ctx = FLContextManager(engine).new_context()
    meta = store.create({JobMetaKey.JOB_NAME.value: "job"}, b"", fl_ctx)
    store.set_status(meta[JobMetaKey.JOB_ID.value], RunStatus.RUNNING, fl_ctx)
    deployer = ServerDeployer()
    deployer.build({
        "server_config": [{"name": PROJECT}], "secure_train": False, "app_validator": None, "server_host": None,
        "snapshot_persistor": Mock(), "server_components": parts, "server_handlers": [],
    })  # fmt: skip
    ended = threading.Event()

    def run(runner, fl_ctx):
        runner.run(fl_ctx)
        ended.set()

    deployer._start_job_runner = run  # FLARE's own does not tell when it has ended
    server = deployer.deploy(SimpleNamespace(workspace=str(tmp_path / "server"), config_folder="config", set=[]))
    server.admin_server = Mock()
    yield server
    server.engine.job_runner.stop()
    assert ended.wait(60)


def register(server: FederatedServer, site: str) -> Client:
    """What FLARE does when a client starts."""
    headers = {CellMessageHeaderKeys.PROJECT_NAME: PROJECT, CellMessageHeaderKeys.CLIENT_NAME: site}
    with server.engine.new_context() as fl_ctx:
        return server.client_manager.login_client(new_cell_message(headers, Shareable()), fl_ctx, ClientType.REGULAR)


def heartbeat(server: FederatedServer, client: Client, jobs: list[str]) -> None:
    """A sign of life, with the jobs that the client runs."""
    beat = Shareable()
    beat.set_peer_context(FLContextManager(identity_name=client.name, job_id="").new_context())
    headers = {
        CellMessageHeaderKeys.TOKEN: client.token, CellMessageHeaderKeys.CLIENT_NAME: client.name,
        CellMessageHeaderKeys.JOB_IDS: jobs,
    }  # fmt: skip
    server.client_heartbeat(new_cell_message(headers, beat))


def start_job(server: FederatedServer, clients: list[Client]) -> None:
    """The server's record of a job that runs at these clients."""
    server.engine.run_processes["job"] = {
        RunProcessKey.JOB_ID: "job", RunProcessKey.JOB_HANDLE: Mock(),
        RunProcessKey.PARTICIPANTS: {client.token: client for client in clients},
    }  # fmt: skip
    server.engine.job_runner._pending_client_outcomes["job"] = {client.name for client in clients}


@pytest.mark.process
def test_one_killed_process_of_a_client_ends_the_job_of_all(server, tmp_path, monkeypatch):
    """A real process is killed. What its client reports reaches the server's own handler."""
    clients = [register(server, site) for site in SITES]
    for client in clients:
        heartbeat(server, client, [])
    start_job(server, clients)
    stopped = Mock()
    monkeypatch.setattr(server.engine.job_runner, "_stop_run", stopped)

    def send(request, **kwargs):
        request.set_header(CellMessageHeaderKeys.TOKEN, clients[2].token)
        return server.process_job_failure(request)

    link = SimpleNamespace(send_request_before_shutdown=send, client_name="site-3", engine=Mock())
    site = JobExecutor(link, str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.kill()
    handle = ProcessHandle(process=process)
    site.run_processes["job"] = {RunProcessKey.JOB_HANDLE: handle, RunProcessKey.STATUS: ClientStatus.STARTED}
    site._wait_child_process_finish(
        link, "job", None, None, None, str(tmp_path), FLContextManager(Mock()).new_context()
    )
    process.stdin.close()

    assert stopped.call_args.args[0] == "job", "at all of them"
    ended = server.engine.exception_run_processes["job"]
    assert server.engine.job_runner._classify_finished_job_status(ended) == RunStatus.FINISHED_EXECUTION_EXCEPTION


def test_the_server_keeps_nothing_of_a_running_job(server):
    with server.engine.new_context() as fl_ctx:
        server.engine.persist_components(fl_ctx, completed=False)
    assert server.engine.snapshot_persistor.mock_calls == []


def test_a_started_server_goes_on_listing_a_lost_job_as_running(server):
    heartbeat(server, register(server, "site-1"), [])
    store, runner = server.engine.job_def_manager, server.engine.job_runner
    for _ in range(3):
        assert store.looked.acquire(timeout=60), "the server looks for jobs"
    with server.engine.new_context() as fl_ctx:
        (job,) = store.get_all_jobs(fl_ctx)
        assert job.meta[JobMetaKey.STATUS.value] == RunStatus.RUNNING.value and job.job_id not in runner.running_jobs
        assert "is not running" in runner.stop_run(job.job_id, fl_ctx), "and it cannot be aborted"


def test_a_client_that_is_started_again_stays_outside(server, monkeypatch):
    first = register(server, "site-1")
    heartbeat(server, first, [])
    start_job(server, [first])
    heartbeat(server, first, ["job"])
    asked = Mock()
    monkeypatch.setattr(server.engine, "start_client_job", asked)
    again = register(server, "site-1")
    for _ in range(3):
        heartbeat(server, again, [])
    assert list(server.client_manager.clients) == [again.token]
    assert list(server.engine.run_processes["job"][RunProcessKey.PARTICIPANTS]) == [first.token] != [again.token]
    assert not asked.called


def test_a_killed_client_is_listed_for_ten_minutes(server):
    client = register(server, "site-1")
    heartbeat(server, client, [])
    (client,) = server.client_manager.clients.values()
    client.last_connect_time = time.time() - 590
    server.remove_dead_clients()
    assert server.engine.get_clients() == [client]
    client.last_connect_time = time.time() - 601
    server.remove_dead_clients()
    assert server.engine.get_clients() == []


def test_the_server_waits_15_minutes_for_the_last_word_of_a_site(server):
    assert server.engine.job_runner.client_outcome_wait_timeout == 15 * 60
