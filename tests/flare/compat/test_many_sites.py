"""Workarounds: `fedsm.flare.compat.simulator` and `app_fedsm.runs.worker_factory`.

Symptoms, FLARE 2.9.0: with fewer threads than sites, processes are started for sites that have no task. A fork of a
process in which FLARE is loaded sends streams under numbers that the server has seen from this site, and waits.
"""

import sys
import threading
import time
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.private.fed.app.simulator import simulator_runner

from fedsm.flare.compat import simulator
from tests.helpers.pristine import pristine


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
    assert not runner.time.short and not simulator.WAITING.takes_turns
    assert chosen(Clients(threads=2), None).client_name == "site-4"
    assert runner.time.short and simulator.WAITING.takes_turns


def test_it_waits_for_the_next_task(hurried, monkeypatch):
    _, chosen = hurried
    monkeypatch.setattr(simulator, "_NO_TASK", 60)
    simulator.WAITING.open([])
    asked = threading.Timer(0.05, simulator.WAITING.open, [["site-3"]])
    asked.start()
    assert chosen(Clients(), None).client_name == "site-3"
    asked.join()


def test_pauses_that_are_short_already_stay(monkeypatch):
    """`fedsm run` makes them short before the job begins."""
    module = pristine(simulator_runner)
    module.time = short = SimpleNamespace(sleep=time.sleep)
    monkeypatch.setitem(sys.modules, simulator._RUNNER, module)
    simulator.hurry()
    assert module.time is short
