"""Workarounds: `fedsm.flare.compat.fork_server` and `fedsm.flare.compat.simulator`.

Symptoms, FLARE 2.9.0: with fewer threads than sites every task of every site gets a new Python, and one is started for
sites that have no task. A fork of a process in which FLARE is loaded sends streams under numbers that the server has
seen from this site, and waits for ever.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.private.fed.app.simulator import simulator_runner

from fedsm.flare.compat import simulator
from fedsm.flare.compat.fork_server import ForkServer, can_fork
from tests.helpers.pristine import pristine

PROBE = """
import json, os, sys
from nvflare.fuel.f3.streaming.stream_utils import gen_stream_id
where = sys.argv[1]
found = {"words": sys.argv[2:], "name": __name__, "set": os.environ.get("PROBE"), "home": "HOME" in os.environ,
         "leads": os.getsid(0) == os.getpid(), "stream": gen_stream_id(), "loaded": "csv" in sys.modules}
with open(where + ".part", "w") as file:
    json.dump(found, file)
os.rename(where + ".part", where)
if "stay" in sys.argv:
    sys.stdin.read()
    import signal
    signal.pause()
"""


@pytest.fixture
def server(tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    server = ForkServer(environment, tmp_path, loaded=["csv"])
    yield server
    server._socket.close()
    assert server.process.wait(60) == 0, "it ends with its simulator"


def start(server, folder: Path, name: str, *words: str):
    command = [sys.executable, "-m", "probe", str(folder / name), *words]
    return server.start(command, {"PROBE": name, "PATH": os.environ["PATH"]})


def said(folder: Path, name: str) -> dict:
    end = time.monotonic() + 60
    while not (folder / name).exists() and time.monotonic() < end:
        time.sleep(0.01)
    return json.loads((folder / name).read_text())


@pytest.mark.process
@pytest.mark.skipif(not can_fork(), reason="only on Linux without an NVIDIA driver")
def test_a_fork_runs_its_command_as_a_new_python_would(tmp_path, server):
    """Its words, its environment and nothing of ours, a session of its own, and streams of its own."""
    workers = [start(server, tmp_path, name, "one", "two words") for name in ("a", "b")]
    for worker in workers:
        worker.wait(60)
        assert worker.poll() == worker.returncode == 1
        worker.terminate()  # of one that has ended: nothing
    a, b = said(tmp_path, "a"), said(tmp_path, "b")
    assert {key: a[key] for key in ("words", "name", "set", "home", "leads", "loaded")} == {
        "words": ["one", "two words"], "name": "__main__", "set": "a", "home": False, "leads": True, "loaded": True
    }  # fmt: skip
    assert a["stream"] != b["stream"]


@pytest.mark.process
@pytest.mark.skipif(not can_fork(), reason="only on Linux without an NVIDIA driver")
def test_a_fork_is_ended_as_a_process_is(tmp_path, server):
    worker = start(server, tmp_path, "a", "stay")
    said(tmp_path, "a")
    assert worker.poll() is None
    assert str(tmp_path) in psutil.Process(worker.pid).cmdline(), "so that it can be found and ended"
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.01)
    worker.terminate()
    assert worker.wait(60) == 1


def test_flare_draws_the_number_of_the_first_stream_when_it_is_loaded():
    """So two forks of one process begin with the same number."""
    loaded = pristine(stream_utils)
    base = loaded.sid_base
    assert [loaded.gen_stream_id(), loaded.gen_stream_id()] == [base + 1, base + 2]


class Clients:
    """What FLARE's choice looks at."""

    def __init__(self, threads: int = 2):
        names = [f"site-{k}" for k in range(1, 6)]
        self.federated_clients = [SimpleNamespace(client_name=name, simulate_running=False) for name in names]
        self.run_client_index = -1
        self.args = SimpleNamespace(threads=threads)
        self.logger = SimpleNamespace(info=lambda *words: None)


@pytest.fixture
def hurried(monkeypatch):
    """FLARE's module as delivered, then as we change it."""
    module = pristine(simulator_runner)
    delivered = module.SimulatorClientRunner.get_next_run_client
    monkeypatch.setitem(sys.modules, simulator._RUNNER, module)
    monkeypatch.setattr(simulator, "WAITING", simulator.Waiting())
    monkeypatch.setattr(simulator, "_NO_TASK", 0.01)
    simulator.hurry()
    return delivered, module.SimulatorClientRunner.get_next_run_client


def test_flare_itself_takes_the_next_site_whether_it_has_a_task_or_not(hurried):
    delivered, _ = hurried
    clients = Clients()
    assert [delivered(clients, None).client_name for _ in range(3)] == ["site-1", "site-2", "site-3"]


def test_a_worker_is_started_for_a_site_that_has_a_task(hurried):
    _, chosen = hurried
    clients = Clients()
    assert chosen(clients, None).client_name == "site-1", "before the first task as FLARE does"
    simulator.WAITING.open(["site-2", "site-4", "site-5"])
    clients.federated_clients[1].simulate_running = True
    assert [chosen(clients, None).client_name for _ in range(3)] == ["site-4", "site-5", "site-4"]
    simulator.WAITING.answered("site-4")
    assert chosen(clients, None).client_name == "site-5"
    simulator.WAITING.close()
    assert chosen(clients, None).client_name == "site-1", "no task for a while: the next one hears of the job's end"


def test_with_a_thread_for_each_site_nothing_is_changed(hurried):
    _, chosen = hurried
    simulator.WAITING.open(["site-4"])
    runner = sys.modules[simulator._RUNNER]
    assert chosen(Clients(threads=5), None).client_name == "site-1"
    assert not runner.time.short and not runner.subprocess.forks
    assert chosen(Clients(threads=2), None).client_name == "site-4"
    assert runner.time.short and runner.subprocess.forks == can_fork()


def test_it_waits_for_the_next_task(hurried, monkeypatch):
    _, chosen = hurried
    monkeypatch.setattr(simulator, "_NO_TASK", 60)
    simulator.WAITING.open([])
    asked = threading.Timer(0.05, simulator.WAITING.open, [["site-3"]])
    asked.start()
    assert chosen(Clients(), None).client_name == "site-3"
    asked.join()


def test_jobs_that_bring_code_get_new_processes(tmp_path):
    """Each site could have other code."""
    command = [sys.executable, "-m", simulator._WORKER, "-o", str(tmp_path)]
    custom = tmp_path / "simulate_job" / "app_site-1" / "custom" / "mine"
    custom.mkdir(parents=True)
    assert not simulator._brings_code(command)
    (custom / "net.py").write_text("")
    assert simulator._brings_code(command)
