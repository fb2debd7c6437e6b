"""Workaround: `fedsm.flare.compat.task_requests`.

Symptom: a site that asks for a task when there is none is told to ask again, and the simulator's worker asks three
times with half a second between: the sites of a short round begin that much later. FLARE 2.9.0.
"""

import inspect
import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.app.simulator import simulator_worker
from nvflare.private.fed.server.server_runner import ServerRunner

from fedsm.flare.compat import task_requests

LONG = 600  # seconds for what takes milliseconds


class Server(ServerRunner):
    """FLARE's runner with one workflow, whose tasks are in a dict."""

    def __init__(self):
        self.tasks: dict[str, str] = {}
        self.looks = 0
        self.status, self.wf_lock, self.abort_signal = "started", threading.RLock(), Signal()
        communicator = SimpleNamespace(process_task_request=self.look)
        self.current_wf = SimpleNamespace(id="fedsm", controller=SimpleNamespace(communicator=communicator))

    def look(self, client, fl_ctx):
        self.looks += 1
        return (self.tasks[client.name], "1", Shareable()) if client.name in self.tasks else ("", "", None)

    def fire_event(self, event_type, fl_ctx):
        pass

    def log_debug(self, fl_ctx, msg, *args, **kwargs):
        pass

    log_info = log_debug


class Request:
    """A site's request, in a thread of its own."""

    def __init__(self, server: Server, site: str):
        self.found = None
        self._work = lambda: server._try_to_get_task(
            Client(site, token=site), SimpleNamespace(set_prop=lambda *a, **k: None)
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        self.found = self._work()

    def answer(self) -> str:
        self.thread.join(LONG)
        return self.found[0]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ServerRunner, "_try_to_get_task", ServerRunner._try_to_get_task)
    monkeypatch.setattr(task_requests, "_waiting", set())
    return Server()


def wait_for(server: Server, sites: int) -> None:
    with task_requests._bell:
        assert task_requests._bell.wait_for(lambda: len(task_requests._waiting) == sites, LONG)


def test_flare_says_at_once_that_there_is_no_task(server):
    assert Request(server, "site-1").answer() == "" and server.looks == 1
    assert "time.sleep(0.5)" in inspect.getsource(simulator_worker.ClientTaskWorker.do_one_task)


def test_a_request_is_answered_when_its_task_stands(server):
    task_requests.hold_requests()
    task_requests.hold_requests()  # a second job in one process: not twice
    one, two = Request(server, "site-1"), Request(server, "site-2")
    wait_for(server, 2)
    server.tasks["site-1"] = "fedsm_train"
    task_requests.ring()
    assert one.answer() == "fedsm_train" and two.thread.is_alive()
    server.tasks["site-2"] = "fedsm_train"
    task_requests.ring()
    assert two.answer() == "fedsm_train"
    assert not task_requests._waiting
    assert server.looks <= 6, "it looks when a task was sent, not all the time"


@pytest.mark.parametrize("end", ["status", "workflow", "abort"])
def test_the_end_of_the_run_answers_all(server, end):
    task_requests.hold_requests()
    request = Request(server, "site-1")
    wait_for(server, 1)
    if end == "status":
        server.status = "done"
    elif end == "workflow":
        server.current_wf = None
    else:
        server.abort_signal.trigger(True)
    assert request.answer() == ""


def test_few_wait_and_one_of_each_site(server, monkeypatch):
    """Whoever asks often takes no more than one of FLARE's threads, and all together not all of them."""
    monkeypatch.setattr(task_requests, "_MOST", 2)
    task_requests.hold_requests()
    first, second = Request(server, "site-1"), Request(server, "site-2")
    wait_for(server, 2)
    assert Request(server, "site-1").answer() == "", "it waits already"
    assert Request(server, "site-3").answer() == "", "two wait"
    server.status = "done"
    assert first.answer() == second.answer() == ""


def test_nobody_waits_for_ever(server, monkeypatch):
    monkeypatch.setattr(task_requests, "_HOLD", 0.0)
    task_requests.hold_requests()
    assert Request(server, "site-1").answer() == ""


def test_nobody_waits_where_sites_take_turns(server, monkeypatch):
    """With fewer threads than sites, whoever waits would keep the others from their tasks."""
    monkeypatch.setattr(task_requests, "_HOLD", float(LONG))
    monkeypatch.setattr(task_requests.WAITING, "takes_turns", True)
    task_requests.hold_requests()
    assert Request(server, "site-1").answer() == "" and server.looks == 1
