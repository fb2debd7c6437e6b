"""A FLARE job that is complete wherever FLARE writes its folder: by `export`, and in SimEnv, PocEnv and ProdEnv.

FLARE's environments take the job and not the recipe. What a recipe's own `export` added would be lost there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.job_config.fed_job_config import FedJobConfig

import fedsm
from app_fedsm.runs.workspace import prepare_workspace
from fedsm.core.names import check_plain_names, check_site_names, refuse_links
from fedsm.core.private_files import close_to_others


class FedSMJob(FedJob):
    """One job of ours.

    Args:
        name: the job's name.
        min_clients: sites that must be there for FLARE to start it.
        byoc: carry the code inside the job. Default: the sites have installed the package.
        sites: the job goes to these alone; default: to all that are connected when it starts.
        server_files: folders that only the server gets: name in its configuration -> where it is now.

    Raises:
        UserError: a name that could be a path or an option: names become folders, and words of FLARE's commands.
    """

    def __init__(
        self,
        name: str,
        min_clients: int,
        byoc: bool = False,
        sites: list[str] | None = None,
        server_files: dict[str, Path] | None = None,
    ):
        check_plain_names([name], "the recipe", "name of a job")
        check_site_names(sites or [], "the recipe")
        super().__init__(name=name, min_clients=min_clients)
        self.job = _JobFolder(self, name, min_clients)
        self.set_app_packages(["fedsm"])  # never copied by FLARE's import scan, which misses files: see `complete`
        self.byoc = byoc
        self.sites = sites
        self.data: Path | None = None  # of the simulator's sites; see `environments.py`
        self._server_files = server_files or {}

    def complete(self, folder: Path) -> None:
        """Adds to the folder that FLARE wrote: the code, what only the server gets, and which sites take part.

        Raises:
            UserError: a link in what the server gets. It would be followed, and may lead to any file of this account.
        """
        app = folder / "app"
        if self.byoc:
            source = Path(fedsm.__file__).parent
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, app / "custom" / "fedsm", ignore=ignored, dirs_exist_ok=True)
        places = {"app": ["server", *self.sites]} if self.sites else None
        if self._server_files:
            shutil.copytree(app, folder / "app_server")
            for name, source in self._server_files.items():
                refuse_links(source, (entry.name for entry in source.iterdir()))
                shutil.copytree(source, folder / "app_server" / "config" / name)
            places = {"app": self.sites or [], "app_server": ["server"]}
        if places:
            meta = folder / "meta.json"
            meta.write_text(json.dumps(json.loads(meta.read_text()) | {"deploy_map": places}, indent=4))
        close_to_others(folder)  # copies have the modes of the installed package

    def simulator_run(
        self, workspace: str, n_clients: int | None = None, clients: list[str] | None = None,
        threads: int | None = None, gpu: str | None = None, log_config: str | None = None,
    ) -> int:  # fmt: skip
        """FLARE's, in a workspace that allows our classes and knows where the data are."""
        if self.data is not None:
            folder = Path(workspace)
            shared = folder.parent  # a job that goes on has another name, and the simulator wipes its workspace
            # FLARE has one folder for all simulations: sites of the same name with other images are other sites.
            data = hashlib.sha256(str(self.data).encode()).hexdigest()[:12]
            state, cache = shared / "site_state" / data, shared / "cache"
            prepare_workspace(folder, self.data, len(clients or []) or n_clients or 1, state, cache)
            close_to_others(folder)  # it may have been there
        return super().simulator_run(workspace, n_clients, clients, threads, gpu, log_config)


class _JobFolder(FedJobConfig):
    """FLARE's writer of job folders, which everything that exports or runs a job goes through."""

    def __init__(self, job: FedSMJob, name: str, min_clients: int):
        super().__init__(job_name=name, min_clients=min_clients)
        self._job = job

    def generate_job_config(self, job_root: str) -> None:
        super().generate_job_config(job_root)
        self._job.complete(Path(job_root) / self.job_name)
