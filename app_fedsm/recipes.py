"""The FedSM recipes, training, evaluation and forgetting: one job for the simulator, POC and production."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.recipe.prod_env import ProdEnv
from nvflare.recipe.run import Run
from nvflare.recipe.spec import ExecEnv, Recipe

from app_fedsm.config.build import build_settings
from app_fedsm.environments import check_result, prepare_environment
from app_fedsm.flare_job import FedSMJob
from app_fedsm.jobs import job_name
from app_fedsm.tracking import Tracking, choose_tracking, receiver_of
from fedsm.core.errors import UserError, one_line_errors
from fedsm.core.model import known_words
from fedsm.core.names import check_site_name
from fedsm.core.private_files import private_files
from fedsm.core.settings import JobSettings
from fedsm.core.task_names import SCORE
from fedsm.flare import exchange
from fedsm.flare.aggregator import SoftPullAggregator
from fedsm.flare.controller import FedSMController
from fedsm.flare.evaluation import MODEL, EvaluationController
from fedsm.flare.executor import FedSMExecutor
from fedsm.flare.forget_controller import ForgetController
from fedsm.tracks import check_options

__all__ = ["EvaluationRecipe", "FedSMRecipe", "ForgetRecipe", "one_line_errors"]

POLL_SECONDS = 0.2  # FLARE's clients ask for work every 2 s by default, which doubles a short round
_FLARE_NAMES = {"num_rounds": "rounds", "min_clients": "min_sites"}  # FLARE's name of a setting -> ours
_SHORT_NAMES = ["lam", "selector", "personal", "preset", "overrides", "dotted"]  # of `build_settings`


class _PrivateRun(Run):
    """FLARE's; what it downloads can be read by its owner alone."""

    def get_result(self, timeout: float = 0.0, clean_up: bool = True) -> str | None:
        with private_files():
            return super().get_result(timeout, clean_up)


class _FedSMRecipe(Recipe):
    """What all recipes share: they run in SimEnv, PocEnv and ProdEnv, and can be exported.

    Args:
        job: the job.
        resume_from: see `FedSMRecipe`.
        tracking: where the curves go; None: there are none.
    """

    def __init__(self, job: FedSMJob, resume_from: str = "", tracking: Tracking | None = None):
        super().__init__(job)
        self.add_server_config({"server": {"task_request_interval": POLL_SECONDS}})
        self._fedsm_job = job
        self._resume_from = resume_from
        self._tracking = tracking

    def run(self, env: ExecEnv, server_exec_params: dict | None = None, client_exec_params: dict | None = None) -> Run:
        """Runs the job in an environment.

        Raises:
            UserError: the environment cannot run it; nothing was started. Or the simulation failed.
        """
        with private_files():
            prepare_environment(env, self._fedsm_job, self._resume_from)
            if self._tracking and not isinstance(env, ProdEnv):  # its server is elsewhere, and looks itself
                self._tracking.check_answers()
            ran = super().run(env, server_exec_params, client_exec_params)
        check_result(env, self._fedsm_job)
        return _PrivateRun(ran.exec_env, ran.job_id)


class FedSMRecipe(_FedSMRecipe):
    """A FedSM job, by the names that FLARE's own recipes use.

    Args:
        name: the job's name; default: `<method>_<task>`.
        task: name of a task, or path of a task's YAML file.
        method: how it is trained.
        num_rounds: federated rounds (`rounds` of our settings).
        min_clients: good answers that a round needs, and sites that FLARE waits for (`min_sites` of our settings).
        resume_from: what to go on from: a `checkpoints` folder (simulator), or `job:ID` (a server that ran this job).
        from_round: the round to go on from, with `resume_from`; default: the newest checkpoint's.
        byoc: carry the code inside the job. Default: the sites have installed the package.
        sites: the job goes to these alone; default: to all that are connected when it starts.
        resources: site (or `@default`) -> what the site's resource manager must have free for this job, such as
            `{"num_of_gpus": 1, "mem_per_gpu_in_GiB": 8}`.
        track: where the curves go: `tensorboard`, `mlflow`, `wandb` or `none`.
        track_uri: address of an MLflow server; default: MLFLOW_TRACKING_URI, or a database in the job's folder.
        settings: all settings at once, instead of the task, the method and the options.
        **options: every other setting of a job (`lr=3e-3`, `size=64`); `lam`, `selector`, `personal` and
            `preset` as in `fedsm run`; `overrides=["task.unet.channels=[8, 16]"]` for what is nested.

    Raises:
        UserError: an unknown setting, or a value that cannot be used.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        task: str | None = None,
        method: str = "fedsm",
        num_rounds: int | None = None,
        min_clients: int | None = None,
        resume_from: str = "",
        from_round: int | None = None,
        byoc: bool = False,
        sites: list[str] | None = None,
        resources: dict[str, dict] | None = None,
        track: str | Tracking | None = None,
        track_uri: str | None = None,
        settings: JobSettings | None = None,
        **options: Any,
    ):
        if settings is None:
            settings = _settings(task, method, {"num_rounds": num_rounds, "min_clients": min_clients}, options)
        elif task or options or num_rounds is not None or min_clients is not None:
            raise UserError("FedSMRecipe takes `settings`, or a task and options, not both")
        check_options(settings)
        self.settings = settings
        tracking = track if isinstance(track, Tracking) else choose_tracking(track, track_uri)
        job = FedSMJob(name or job_name(settings), settings.min_sites, byoc, sites)
        for site, needed in (resources or {}).items():
            job.job.add_resource_spec(site, needed)
        controller = FedSMController(settings.to_dict(), resume_from=resume_from, from_round=from_round)
        job.to_server(controller, id="controller")
        job.to_server(SoftPullAggregator(), id="aggregator")
        if receiver := receiver_of(tracking, job.name, settings):
            job.to_server(receiver, id=tracking.kind)
        tasks = [*exchange.TASKS, exchange.SUM, exchange.OPEN, exchange.MIX]
        job.to_clients(FedSMExecutor(), tasks=tasks)
        super().__init__(job, resume_from, tracking)


def _settings(task: str | None, method: str, given: dict[str, Any], options: dict[str, Any]) -> JobSettings:
    if task is None:
        raise UserError("FedSMRecipe needs a task", remedy='for example FedSMRecipe(task="retinal")')
    keywords = list(dict.fromkeys([*_FLARE_NAMES, *_SHORT_NAMES, *JobSettings.model_fields]))
    for name in options:
        if name not in keywords:
            raise UserError(f"unknown keyword {name!r} of FedSMRecipe", remedy=known_words(name, keywords))
    for name, value in given.items():
        if value is not None and _FLARE_NAMES[name] in options:
            raise UserError(f"{name} and {_FLARE_NAMES[name]} are the same setting", remedy="give one of them")
    return build_settings(
        task, method, **options, **{_FLARE_NAMES[name]: value for name, value in given.items() if value is not None}
    )


class EvaluationRecipe(_FedSMRecipe):
    """An evaluation: a super model that every site scores on its own images.

    Args:
        name: the job's name.
        model: the super model's folder. It is sent in the server's configuration, which is not code: sites that forbid
            BYOC accept the job.
        sites: the sites that take part.
        part: which of the sites' images; see `EvaluationController`.
        seed: of the bootstrap.
        byoc: carry the code inside the job.
        task: what the sites do; see `EvaluationController`.
    """

    def __init__(
        self, name: str = "evaluate", *, model: Path | str, sites: list[str], part: str = "test", seed: int = 0,
        byoc: bool = False, task: str = SCORE,
    ):  # fmt: skip
        job = FedSMJob(name, 1, byoc, sites, {MODEL: Path(model)})
        job.to_server(EvaluationController(part, seed, task), id="controller")
        job.to_clients(FedSMExecutor(), tasks=[task])
        super().__init__(job)


class ForgetRecipe(_FedSMRecipe):
    """A job that removes a site from what the server keeps of a run.

    Args:
        name: the job's name; default: `forget_<site>`.
        site: who leaves.
        run: see `ForgetController`.
        witness: a site that the job is sent to, because FLARE needs one; it does nothing.
        byoc: carry the code inside the job.
    """

    def __init__(self, name: str | None = None, *, site: str, run: str, witness: str, byoc: bool = False):
        check_site_name(site, "the recipe")
        job = FedSMJob(name or f"forget_{site}", 1, byoc, [witness])
        job.to_server(ForgetController(site, run), id="controller")
        job.to_clients(FedSMExecutor(), tasks=[SCORE])
        super().__init__(job, run)
