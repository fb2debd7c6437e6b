"""The FedSM recipes, training, evaluation and forgetting: one job for the simulator, POC and production."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from nvflare.app_common.widgets.streaming import ANALYTIC_EVENT_TYPE
from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

import fedsm
from fedsm.core.private_files import close_to_others
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import SCORE
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.controller import FedSMController
from fedsm.flare.evaluation import MODEL, EvaluationController
from fedsm.flare.executor import FedSMExecutor
from fedsm.flare.forget_controller import ForgetController
from fedsm.tracks import check_options

POLL_SECONDS = 0.2  # FLARE's clients ask for work every 2 s by default, which doubles a short round


class _FedSMJob(Recipe):
    """What all recipes share.

    Args:
        job: the job.
        byoc: carry the code inside the job. Default: the sites have installed the package.
        sites: the job goes to these alone; default: to all that are connected when it starts.

    Raises:
        UserError: the tracks cannot work with any number of sites.
    """

    def __init__(self, job: FedJob, byoc: bool, sites: list[str] | None):
        job.set_app_packages(["fedsm"])  # never copied by FLARE's import scan, which misses files: see export
        super().__init__(job)
        self.add_server_config({"server": {"task_request_interval": POLL_SECONDS}})
        self._byoc = byoc
        self._sites = sites

    def export(self, job_dir: str, **kwargs: Any) -> None:
        """Writes the job folder `<job_dir>/<name>`; with `byoc` the whole package goes into its `app/custom`."""
        with tempfile.TemporaryDirectory() as staging:
            if self._byoc:
                source = Path(fedsm.__file__).parent
                shutil.copytree(source, Path(staging) / "fedsm", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
                self.add_server_file(staging)
            super().export(job_dir, **kwargs)
        close_to_others(Path(job_dir) / self._job.name)  # copies of code have the modes of the installed package
        if self._sites:
            self._deploy(Path(job_dir) / self._job.name, {"app": ["server", *self._sites]})

    def _deploy(self, folder: Path, places: dict[str, list[str]]) -> None:
        """Says in an exported job which app goes where."""
        meta = folder / "meta.json"
        content = json.loads(meta.read_text())
        content["deploy_map"] = places
        meta.write_text(json.dumps(content, indent=4))


class FedSMRecipe(_FedSMJob):
    """Puts a FedSM job together.

    Args:
        settings: everything about the job; it is written once, into the server's configuration.
        name: the job's name.
        resume_from: what to go on from: a `checkpoints` folder on the server's disk, or `job:ID`.
        byoc: carry the code inside the job. Default: the sites have installed the package.
        resources: site (or `@default`) -> what the site's resource manager must have free for this job, such as
            `{"num_of_gpus": 1, "mem_per_gpu_in_GiB": 8}`.
        sites: the job goes to these alone; default: to all that are connected when it starts.
        from_round: the round to go on from, with `resume_from`; default: the newest checkpoint's.
    """

    def __init__(
        self, settings: JobSettings, name: str, resume_from: str = "", byoc: bool = False,
        resources: dict[str, dict] | None = None, sites: list[str] | None = None, from_round: int | None = None,
    ):  # fmt: skip
        check_options(settings)
        job = FedJob(name=name, min_clients=settings.min_sites)
        for site, needed in (resources or {}).items():
            job.job.add_resource_spec(site, needed)
        controller = FedSMController(settings.to_dict(), resume_from=resume_from, from_round=from_round)
        job.to_server(controller, id="controller")
        job.to_server(SoftPullAggregator(), id="aggregator")
        # The controller's curves only: by default it also takes what sites send, under any name and of any size.
        job.to_server(TBAnalyticsReceiver(events=[ANALYTIC_EVENT_TYPE]), id="tensorboard")
        tasks = [exchange.REGISTER, exchange.TRAIN, exchange.VALIDATE, exchange.EVALUATE]
        job.to_clients(FedSMExecutor(), tasks=tasks)
        super().__init__(job, byoc, sites)


class EvaluationRecipe(_FedSMJob):
    """Puts an evaluation together: a super model that every site scores on its own images.

    Args:
        model: the super model's folder. It is sent in the server's configuration, which is not code: sites that forbid
            BYOC accept the job.
        name: the job's name.
        part: which of the sites' images; see `EvaluationController`.
        seed: of the bootstrap.
        sites: the sites that take part.
        byoc: carry the code inside the job.
    """

    def __init__(self, model: Path, name: str, part: str, seed: int, sites: list[str], byoc: bool = False):
        job = FedJob(name=name, min_clients=1)
        job.to_server(EvaluationController(part, seed), id="controller")
        job.to_clients(FedSMExecutor(), tasks=[SCORE])
        super().__init__(job, byoc, sites)
        self._model = model

    def export(self, job_dir: str, **kwargs: Any) -> None:
        super().export(job_dir, **kwargs)
        folder = Path(job_dir) / self._job.name
        shutil.copytree(folder / "app", folder / "app_server")
        shutil.copytree(self._model, folder / "app_server" / "config" / MODEL)
        self._deploy(folder, {"app": self._sites or [], "app_server": ["server"]})


class ForgetRecipe(_FedSMJob):
    """Puts a job together that removes a site from what the server keeps of a run.

    Args:
        site: who leaves.
        run: see `ForgetController`.
        witness: a site that the job is sent to, because FLARE needs one; it does nothing.
        byoc: carry the code inside the job.
    """

    def __init__(self, site: str, run: str, witness: str, byoc: bool = False):
        job = FedJob(name=f"forget_{site}", min_clients=1)
        job.to_server(ForgetController(site, run), id="controller")
        job.to_clients(FedSMExecutor(), tasks=[SCORE])
        super().__init__(job, byoc, [witness])
