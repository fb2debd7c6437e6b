"""Workarounds in `app_fedsm.runs`.

Symptoms, FLARE 2.9.0:
- `workspace.py`: the simulator lets only FLARE's own classes run unless the workspace has an allow list.
- `simulate.py`, spaces: the simulator splits the command line of its workers at blanks, and the workspace's path stands
  in it without quotes: with a blank in the path no site ever connects.
- `simulate.py`, `_SITE_LOST`: the simulator looks for a free port, lets go of it and starts a worker that is to listen
  there. Another program may take it in between; that site never runs.
- `simulate.py`, `_Family`: every worker leads a session of its own, so that whoever ends the simulator with all of its
  group (Ctrl-C in a terminal, a batch system) misses the workers.
- `worker_factory.py`: every worker is a new interpreter that loads torch, MONAI and FLARE.
- `flare_simulator.py`: the simulator looks once a second at what it waits for.
"""

import inspect
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.fuel.f3.streaming import stream_utils
from nvflare.private.fed.app.simulator import simulator_runner, simulator_worker

from app_fedsm.runs import worker_factory
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from tests.helpers.pristine import pristine


class Started(Exception):
    """In the place of a started worker."""


def worker_command(workspace: Path, monkeypatch) -> tuple[list[str], list[int], dict]:
    """How FLARE's simulator would start a worker: the words, the ports that it had asked for by then, the options."""
    runner = pristine(simulator_runner)
    (workspace / "site-1" / "startup").mkdir(parents=True)
    (workspace / "site-1" / "local").mkdir()
    ports, words, options = [], [], {}

    def open_ports(count: int) -> list[int]:
        ports.append(12345)
        return [12345]

    def popen(command, **kwargs):
        words.extend(command)
        options.update(kwargs)
        raise Started

    monkeypatch.setattr(runner, "get_open_ports", open_ports)
    monkeypatch.setattr(runner, "subprocess", SimpleNamespace(Popen=popen))
    cell = SimpleNamespace(get_root_url_for_child=lambda: "tcp://0", get_internal_listener_url=lambda: "tcp://1")
    client = SimpleNamespace(client_name="site-1", token="token", cell=cell)
    args = SimpleNamespace(workspace=str(workspace), log_config=None)
    simulator = SimpleNamespace(args=args, simulator_root=str(workspace), server_custom_folder=f"{workspace}/custom")
    with pytest.raises(Started):
        runner.SimulatorClientRunner.do_one_task(simulator, client, 1, None, threading.Lock())
    return words, ports, options


def test_a_blank_in_the_workspace_is_split(tmp_path, monkeypatch):
    words, _, _ = worker_command(tmp_path / "a run", monkeypatch)
    assert str(tmp_path / "a") in words and not any(word.startswith(str(tmp_path / "a run")) for word in words)


def test_the_port_is_only_a_number_when_the_worker_starts(tmp_path, monkeypatch):
    words, ports, _ = worker_command(tmp_path, monkeypatch)
    assert words[words.index("--port") + 1] == str(ports[0])


def test_a_worker_leads_a_session_of_its_own(tmp_path, monkeypatch):
    _, _, options = worker_command(tmp_path, monkeypatch)
    assert options.get("preexec_fn") is os.setsid or options.get("start_new_session")


def test_a_worker_is_a_new_interpreter(tmp_path, monkeypatch):
    words, _, options = worker_command(tmp_path, monkeypatch)
    assert words[0] == sys.executable and words[1:3] == worker_factory._WORKER, "what the factory takes over"
    assert options["env"]["PATH"] == os.environ["PATH"] and not options["shell"]


def test_flares_own_file_of_a_worker_is_what_an_order_does():
    """After `__name__ == "__main__"`: the arguments, the monitor, and a pause at the end that is left out."""
    words = inspect.getsource(simulator_worker).partition('__name__ == "__main__":')[2]
    assert "args = parse_arguments()\n    mpm.run(main_func=main, run_dir=args.workspace, args=args)\n" in words


def test_every_process_draws_its_first_stream_when_it_is_loaded():
    assert "sid_base = int(time.time() * MILLION) + random.randint(0, MILLION)" in inspect.getsource(stream_utils)


def test_the_simulator_looks_once_a_second():
    assert "time.sleep(1.0)" in inspect.getsource(simulator_runner.SimulatorClientRunner._create_connection)
    assert "interval = 1\n" in inspect.getsource(simulator_runner.SimulatorClientRunner.run_client_thread)


def test_our_classes_are_not_on_flares_own_list():
    for path in (*SERVER_CLASSES, *SITE_CLASSES):
        if path.startswith("fedsm"):
            assert not any(path.startswith(allowed) for allowed in DEFAULT_CLASS_ALLOW_LIST), path
