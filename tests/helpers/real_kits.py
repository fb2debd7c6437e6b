"""A provisioned federation in real processes for attacks: mTLS, three sites, two leads, no code inside jobs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from app_fedsm.federation import remote
from app_fedsm.federation import session as sessions
from app_fedsm.federation.following import follow
from app_fedsm.provisioning.provision import provision
from app_fedsm.runs.run_folder import PROGRESS
from fedsm.server.checkpoint_dirs import RUNS
from tests.helpers.folders import ROOT
from tests.helpers.processes import Running, free_port
from tests.helpers.small_jobs import SITES

LEAD, OTHER = "lead@consortium.example.org", "other@university.example.org"


@dataclass
class Ended:
    """A job that has ended.

    Attributes:
        id: the job's id.
        reason: why it failed, as its submitter reads it; None where it did not.
        log: the server's log of it.
        workspace: what its submitter could download.
    """

    id: str
    reason: str | None
    log: str
    workspace: Path


class RealFederation(Running):
    """Server, sites and users of a consortium in which jobs may not bring code.

    Args:
        folder: scratch folder.
        data_root: one folder per site.
    """

    def __init__(self, folder: Path, data_root: Path):
        self.folder = folder
        super().__init__(self._provision(), folder)
        self.users = self.kits.users
        self.lead = self.users[LEAD]
        self.server_runs = self.kits.server / RUNS
        self.tell_data(data_root)

    def _provision(self):
        project = yaml.safe_load((ROOT / "poc_workspace" / "project_localhost.yml").read_text())
        for entry in project["participants"]:
            entry.pop("byoc", None)
            if entry["type"] == "server":
                entry["fed_learn_port"] = free_port()
        self.change(project)
        project["participants"].append({"name": OTHER, "type": "admin", "org": "university", "role": "lead"})
        (self.folder / "project.yml").write_text(yaml.safe_dump(project))
        return provision(self.folder / "project.yml", self.folder / "kits")

    def change(self, project: dict) -> None:
        """What a test's own consortium has besides."""

    def turn_hostile(self, site: str) -> Path:
        """Lets a hospital put a filter of its own into its kit, before it starts; returns the file that steers it."""
        local = self.kits.sites[site] / "local"
        (local / "custom").mkdir(exist_ok=True)
        shutil.copyfile(Path(__file__).with_name("hostile_filter.py"), local / "custom" / "hostile_filter.py")
        path = "hostile_filter.HostileFilter"
        scope = {"name": "own", "properties": {}, "task_result_filters": [{"path": path, "args": {}}]}
        policy = {"scopes": [scope | {"task_data_filters": []}], "default_scope": "own"}
        (local / "privacy.json").write_text(json.dumps(policy))
        resources = json.loads((local / "resources.json").read_text())
        resources["class_allow_list"] += [path]
        (local / "resources.json").write_text(json.dumps(resources))
        return self.kits.sites[site] / "hostile.json"

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Starts server, relays and sites with the package that is installed here, waits for them, and stops them."""
        try:
            self._start_all()
            yield
        finally:
            self.stop_all()

    def _start_all(self) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}
        for kit in [self.kits.server, *self.kits.relays.values(), *self.kits.sites.values()]:
            self.start(kit, env)
        self.wait_for(SITES)

    def submit(self, user: str, job: Path) -> str:
        """Submits an exported job as a user; returns its id."""
        with sessions.connect(sessions.Login(self.users[user])) as session:
            return remote.hand_in(session, job)

    def finish(self, user: str, job_id: str) -> Ended:
        """Waits for a job's end and downloads what its submitter may have."""
        login = sessions.Login(self.users[user])
        meta, failure = follow(login, job_id, 1, "job")
        target, log = self.folder / "downloads" / job_id, self.folder / "logs" / f"{job_id}.log"
        log.parent.mkdir(exist_ok=True)
        with remote.download(login, job_id, log) as workspace:
            there = workspace is not None and workspace.is_dir()  # a job that was never deployed has none
            shutil.copytree(workspace, target) if there else target.mkdir(parents=True)
        ok = meta["status"] == "FINISHED:COMPLETED" and not failure
        reason = None if ok else failure or remote.reason_of(target / PROGRESS, log, meta)
        return Ended(job_id, reason, log.read_text() if log.is_file() else "", target)


def change_server_config(job: Path, app: str, change) -> None:
    """Edits the server's configuration of an exported job, as an attacker would by hand."""
    path = job / app / "config" / "config_fed_server.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
