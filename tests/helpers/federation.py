"""A federation in one process: the real controller, task server, aggregator and executors, no FLARE processes.

What is replaced is FLARE's network and its engine. A `fault` may drop, delay, damage or repeat what a site does.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import yaml
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.client.client_engine_executor_spec import ClientEngineExecutorSpec

from fedsm.client.site_settings import FILE_NAME as SITE_FILE
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import SIMULATED_JOB
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.controller import FedSMController
from fedsm.flare.executor import FedSMExecutor
from tests.helpers.kinds import FEDERATION_EVENT

JOB = SIMULATED_JOB  # checkpoints are in the job's own folder then
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1  # seconds between two questions for a task
Fault = Callable[["Site", str, Shareable, Callable[[], Shareable]], Shareable | None]


class Site:
    """One site: an executor in a thread that fetches, works and submits."""

    def __init__(self, federation: Federation, name: str):
        self.federation = federation
        self.name = name
        self.client = Client(name, token=name)
        self.executor = FedSMExecutor()
        root = federation.folder / name
        (root / "startup").mkdir(parents=True, exist_ok=True)
        (root / "local").mkdir(exist_ok=True)
        settings = {"data_root": str(federation.data), "threads": 1, "trainer": "inside"}
        settings |= federation.site_settings.get(name, {})
        (root / "local" / SITE_FILE).write_text(yaml.safe_dump(settings))
        engine = Mock(spec=ClientEngineExecutorSpec)
        engine.get_workspace.return_value = Workspace(str(root), name)
        own = {FLContextKey.SIMULATE_MODE: True} if federation.simulated else {}
        self.manager = FLContextManager(
            engine=engine, identity_name=name, job_id=federation.job_id, private_stickers=own
        )
        engine.new_context.side_effect = self.manager.new_context

    def restart(self) -> None:
        """A new process: whatever the executor held in memory is gone."""
        self.stop()
        self.executor = FedSMExecutor()

    def stop(self) -> None:
        """The end of the job at the site."""
        with self.manager.new_context() as fl_ctx:
            self.executor.handle_event(EventType.END_RUN, fl_ctx)

    def fetch(self) -> tuple[str, str, Shareable]:
        """Asks the server for a task."""
        return self.federation.server.process_task_request(self.client, self.federation.server_context(self))

    def submit(self, name: str, task_id: str, result: Shareable) -> None:
        """Hands a result to the server."""
        self.federation.server.process_submission(
            self.client, name, task_id, result, self.federation.server_context(self)
        )

    def work(self, name: str, shareable: Shareable) -> Shareable:
        """Does a task. What arrives is a copy, as it is over a network."""
        with self.manager.new_context() as fl_ctx:
            self.executor.handle_event(EventType.START_RUN, fl_ctx)
            return copy.deepcopy(self.executor.execute(name, copy.deepcopy(shareable), fl_ctx, self.federation.abort))

    def loop(self) -> None:
        """Works until the job is done. What goes wrong in a test's own fault ends the run, instead of a site's answer
        that never comes."""
        try:
            self._loop()
        except BaseException as e:
            self.federation.broken = e
            self.federation.abort.trigger(True)

    def _loop(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self.federation.done.is_set():
            name, task_id, shareable = self.fetch()
            if not name:
                self.federation.done.wait(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE)  # whoever waits long leaves the processor to others
                continue
            pause = _SHORTEST_PAUSE
            fault = self.federation.fault
            result = (
                fault(self, name, shareable, lambda n=name, s=shareable: self.work(n, s))
                if fault
                else self.work(name, shareable)
            )
            if result is not None:
                self.submit(name, task_id, result)


class Federation:
    """Runs a job to its end.

    Args:
        folder: scratch folder; `folder/server/job` is the server's run folder.
        data: data root with one folder per site.
        settings: the job's settings.
        sites: names of the sites.
        resume_from: a checkpoints folder.
        fault: what goes wrong at the sites.
        site_settings: site -> what its `fedsm_site.yaml` says beyond where the data are.
        controller: another one than that of a training.
        job_id: another one than the simulator's: checkpoints live beside the jobs then, and have an owner.
        components: further components of the server, id -> component; they get its events.
        submitter: who submitted it, as FLARE's job meta says: `submitter_name` and the like.
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        settings: JobSettings,
        sites: list[str],
        resume_from: str = "",
        fault: Fault | None = None,
        site_settings: dict[str, dict] | None = None,
        controller: Controller | None = None,
        job_id: str = JOB,
        submitter: dict[str, str] | None = None,
        components: dict[str, FLComponent] | None = None,
    ):
        sys.audit(FEDERATION_EVENT)
        self.job_id = job_id
        self.simulated = job_id == JOB and submitter is None
        self.folder, self.data, self.fault = folder, data, fault
        self.site_settings = site_settings or {}
        self.abort = Signal()
        self.done = threading.Event()
        self.panic: str | None = None
        self.broken: BaseException | None = None  # what a test's own fault raised
        self.aggregator = SoftPullAggregator()
        self._components = components or {}
        self.controller = controller or FedSMController(settings.to_dict(), resume_from=resume_from)
        (folder / "server" / "startup").mkdir(parents=True, exist_ok=True)
        (folder / "server" / "local").mkdir(exist_ok=True)
        # The simulator's server finds the same file as its sites: they share the workspace.
        (folder / "server" / "local" / SITE_FILE).write_text(yaml.safe_dump({"data_root": str(data)}))
        self.sites = {name: Site(self, name) for name in sites}

        self.engine = Mock(spec=ServerEngineSpec)
        self.engine.get_clients.return_value = [s.client for s in self.sites.values()]
        self.engine.get_component.side_effect = ({"aggregator": self.aggregator} | self._components).get
        self.engine.get_workspace.return_value = Workspace(str(folder / "server"), "server")
        self.engine.fire_event.side_effect = self._fire
        self.engine.get_cell = lambda: None
        self._manager = FLContextManager(
            self.engine, "server", job_id, private_stickers={FLContextKey.PROCESS_TYPE: ProcessType.SERVER_JOB}
        )
        self.engine.new_context.side_effect = self._manager.new_context
        self._job_meta = submitter
        self.server = WFCommServer(task_check_period=0.02)
        self.controller.set_communicator(self.server)
        self.events: list[str] = []

    @property
    def run_folder(self) -> Path:
        """Where the controller writes."""
        return self.folder / "server" / self.job_id

    def server_context(self, site: Site) -> FLContext:
        """The server's context of one request of a site."""
        fl_ctx = self._manager.new_context()
        fl_ctx.set_peer_context(site.manager.new_context())
        return fl_ctx

    def _fire(self, event: str, fl_ctx: FLContext) -> None:
        self.events.append(event)
        for component in self._components.values():
            component.handle_event(event, fl_ctx)
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.panic = fl_ctx.get_prop("__event_data__")
            self.abort.trigger(True)

    def run(self) -> Federation:
        """Runs the job; afterwards `panic` holds the reason if the controller gave up."""
        fl_ctx = self._manager.new_context()
        fl_ctx.set_prop(FLContextKey.JOB_META, self._job_meta, private=True, sticky=True)
        self.server.initialize_run(fl_ctx)
        self.controller.initialize(fl_ctx)
        self._fire(EventType.START_RUN, fl_ctx)
        threads = [threading.Thread(target=site.loop, daemon=True) for site in self.sites.values()]
        for thread in threads:
            thread.start()
        try:
            self.controller.control_flow(self.abort, fl_ctx)
        finally:
            self.monitor_alive = self.server._task_monitor.is_alive()
            self.done.set()
            self.controller.stop_controller(fl_ctx)
            self.server.finalize_run(fl_ctx)
            self._fire(EventType.END_RUN, fl_ctx)
            for thread in threads:
                thread.join(timeout=30)
        if self.broken:
            raise self.broken
        return self


def results_of(federation: Federation) -> dict:
    """What a finished job wrote."""
    return json.loads((federation.run_folder / "results.json").read_text())


def in_round(shareable) -> int:
    """The round that a task or an answer is of."""
    return exchange.unpack(shareable)[0]["round"]


def failing(*times: tuple[str, int]):
    """Sites that fail in a round, as often as they are named; afterwards they work."""
    left = list(times)

    def fault(site, task, shareable, work):
        if task == exchange.TRAIN and (site.name, in_round(shareable)) in left:
            left.remove((site.name, in_round(shareable)))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return work()

    return fault
