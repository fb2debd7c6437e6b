"""The FedSM recipe: one job for the simulator, POC and production."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

import fedsm
from fedsm import exchange
from fedsm.client.executor import FedSMExecutor
from fedsm.server.aggregator import SoftPullAggregator
from fedsm.server.controller import FedSMController
from fedsm.settings import JobSettings

POLL_SECONDS = 0.2  # FLARE's clients ask for work every 2 s by default, which doubles a short round


class FedSMRecipe(Recipe):
    """Puts a FedSM job together.

    Args:
        settings: everything about the job; it is written once, into the server's configuration.
        name: the job's name.
        resume_from: what to go on from: a `checkpoints` folder on the server's disk, or `job:ID`.
        byoc: carry the code inside the job. Default: the sites have installed the package.
        resources: site (or `@default`) -> what the site's resource manager must have free for this job, such as
            `{"num_of_gpus": 1, "mem_per_gpu_in_GiB": 8}`.
        sites: the job goes to these alone; default: to all that are connected when it starts.
    """

    def __init__(
        self, settings: JobSettings, name: str, resume_from: str = "", byoc: bool = False,
        resources: dict[str, dict] | None = None, sites: list[str] | None = None,
    ):  # fmt: skip
        job = FedJob(name=name, min_clients=settings.min_sites)
        for site, needed in (resources or {}).items():
            job.job.add_resource_spec(site, needed)
        job.set_app_packages(["fedsm"])  # never copied by FLARE's import scan, which misses files: see export
        job.to_server(FedSMController(settings.to_dict(), resume_from=resume_from), id="controller")
        job.to_server(SoftPullAggregator(), id="aggregator")
        job.to_server(TBAnalyticsReceiver(), id="tensorboard")
        tasks = [exchange.REGISTER, exchange.TRAIN, exchange.VALIDATE, exchange.EVALUATE]
        job.to_clients(FedSMExecutor(), tasks=tasks)
        super().__init__(job)
        self.add_server_config({"server": {"task_request_interval": POLL_SECONDS}})
        self._byoc = byoc
        self._sites = sites

    def export(self, job_dir: str, **kwargs) -> None:
        """Writes the job folder `<job_dir>/<name>`; with `byoc` the whole package goes into its `app/custom`."""
        with tempfile.TemporaryDirectory() as staging:
            if self._byoc:
                source = Path(fedsm.__file__).parent
                shutil.copytree(source, Path(staging) / "fedsm", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
                self.add_server_file(staging)
            super().export(job_dir, **kwargs)
        if self._sites:
            meta = Path(job_dir) / self._job.name / "meta.json"
            content = json.loads(meta.read_text())
            content["deploy_map"] = {app: ["server", *self._sites] for app in content["deploy_map"]}
            meta.write_text(json.dumps(content, indent=4))
