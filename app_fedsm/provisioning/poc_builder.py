"""The kits of FLARE's `PocEnv`. FLARE provisions and starts in one call, so our part is a builder in its project."""

from __future__ import annotations

import os
from pathlib import Path

import yaml
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder, ProvisionContext

from app_fedsm.provisioning.kits import RESOURCES, close_kit, fill_server, fill_site
from fedsm.client.site_settings import FILE_NAME
from fedsm.core.task_names import DEFAULT_STUDY

_ORG = "fedsm"


class FedSMBuilder(Builder):
    """Makes the kits of a POC ready for FedSM jobs: our classes are allowed, and each site knows its images.

    Args:
        data: the data root, with one folder per site.
        storage: where the server keeps jobs and results.
    """

    def __init__(self, data: str, storage: str):
        super().__init__()
        self._data, self._storage = Path(data), Path(storage)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Called by FLARE after its own builders."""
        server = Path(ctx.get_ws_dir(project.get_server()))
        (server / "local" / RESOURCES).unlink(missing_ok=True)
        fill_server(server, self._storage)
        sites = project.get_clients()
        threads = max(1, (os.cpu_count() or 1) // len(sites))
        for site in sites:
            kit = Path(ctx.get_ws_dir(site))
            fill_site(kit)
            own = {"data": str(self._data / site.name), "threads": threads}
            (kit / "local" / FILE_NAME).write_text(yaml.safe_dump(own))
        for participant in project.get_all_participants():
            close_kit(Path(ctx.get_ws_dir(participant)))


def poc_project(sites: list[str], data: Path, storage: Path, admin: str, port: int, study: str = DEFAULT_STUDY) -> dict:
    """FLARE's project file for a POC of ours: its own builders, and ours at the end.

    Args:
        sites: their names.
        data: the data root.
        storage: where the server keeps jobs and results.
        admin: the user who submits.
        port: the server's.
        study: a study that everybody is in.
    """
    import nvflare.lighter

    example = yaml.safe_load((Path(nvflare.lighter.__file__).parent / "dummy_project.yml").read_text())
    people = [{"name": "server", "type": "server", "org": _ORG, "fed_learn_port": port}]
    people += [{"name": site, "type": "client", "org": _ORG} for site in sites]
    people += [{"name": admin, "type": "admin", "org": _ORG, "role": "project_admin"}]
    ours = {
        "path": f"{FedSMBuilder.__module__}.{FedSMBuilder.__name__}",
        "args": {"data": str(data), "storage": str(storage)},
    }
    builders = example["builders"]
    project = example | {"participants": people, "builders": [*builders[:-1], ours, builders[-1]]}
    if study != DEFAULT_STUDY:
        project |= {"api_version": 4, "studies": {study: {"site_orgs": {_ORG: sites}, "admins": [admin]}}}
    return project
