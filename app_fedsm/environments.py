"""FLARE's environments of recipes: what each needs before it runs a FedSM job, and what it cannot do.

Everything is refused here, before FLARE starts anything.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.prod_env import DEFAULT_ADMIN_USER, ProdEnv
from nvflare.recipe.run import Run
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv

from app_fedsm.federation import session as sessions
from app_fedsm.federation.poc import is_free
from app_fedsm.federation.remote import check_connected
from app_fedsm.flare_job import FedSMJob
from app_fedsm.provisioning.poc_builder import poc_project
from app_fedsm.runs.run_folder import PROGRESS
from app_fedsm.runs.workspace import is_plain
from fedsm.client.site_settings import DATA_ROOT_VARIABLE
from fedsm.core.errors import UserError
from fedsm.core.plain_json import parse_json
from fedsm.core.private_files import check_own_place
from fedsm.data.site_folder import list_sites

DATA = "data"  # in an environment's `extra`
PORT = "port"  # the same; PocEnv only
_POC_PORT = 8002  # FLARE's own
_POC_START = 120.0  # seconds that the server of a POC may take to start; FLARE waits 10, too few on a busy machine
_JOB = "job:"


def prepare_environment(env: ExecEnv, job: FedSMJob, resume_from: str = "") -> None:
    """Makes an environment ready for a job.

    Args:
        env: SimEnv, PocEnv or ProdEnv.
        job: the job.
        resume_from: what it goes on from.

    Raises:
        UserError: the environment cannot run the job.
    """
    if isinstance(env, SimEnv):
        _prepare_simulator(env, job, resume_from)
    elif isinstance(env, PocEnv):
        _prepare_poc(env, job, resume_from)
    elif isinstance(env, ProdEnv):
        _prepare_production(env, job, resume_from)
    else:
        raise UserError(f"{type(env).__name__} is not known here", remedy="use SimEnv, PocEnv or ProdEnv")


def sites_of(data: str) -> dict[str, Any]:
    """Arguments of SimEnv and PocEnv: a site for each folder of a data root, and where the data are.

    Raises:
        UserError: it is no folder, or holds no site.
    """
    names = list_sites(Path(data))
    return {"num_clients": len(names), "clients": names, "extra": {DATA: data}}


def results_folder(env: ExecEnv, run: Run) -> Path | None:
    """The folder of a finished run that `fedsm predict`, `report` and the others take; None where it has no results."""
    result = run.get_result(clean_up=False)
    below = "server/simulate_job" if isinstance(env, SimEnv) else "workspace"
    return Path(result) / below if result else None


def check_result(env: ExecEnv, job: FedSMJob) -> None:
    """After a simulation, which has ended when FLARE returns: says why it has no results.

    Raises:
        UserError: it has none.
    """
    if not isinstance(env, SimEnv):
        return
    folder = Path(env.workspace_root) / job.name / "server" / "simulate_job"
    events = [parse_json(line) for line in _lines(folder / PROGRESS)]
    reasons = [event["reason"] for event in events if event["event"] == "failed"]
    if reasons or not events:
        why = reasons[-1] if reasons else "it never started"
        raise UserError(f"the simulation failed: {why}", remedy=f"see {folder.parent}")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.endswith("}")] if path.is_file() else []


def _data_root(env: ExecEnv, sites: list[str], how: str) -> Path:
    """The data root of sites that live on this machine.

    Raises:
        UserError: none was given, or it has no folder for a site.
    """
    given = env.get_extra_prop(DATA) or os.environ.get(DATA_ROOT_VARIABLE)
    if not given:
        raise UserError(
            f"{how} has no data",
            remedy=f'give {how}(..., extra={{"{DATA}": FOLDER}}) or set {DATA_ROOT_VARIABLE}: a folder with one'
            " sub-folder per site",
        )
    root = Path(given).resolve()
    there = list_sites(root)
    if missing := [site for site in sites if site not in there]:
        raise UserError(f"{root} holds no site {missing[0]!r}", remedy=f"choose among them with {_given(how, there)}")
    return root


def _given(how: str, names: list[str]) -> str:
    """An environment with these sites, as it is written; both numbers must agree, and PocEnv's default is 2."""
    return f"{how}(num_clients={len(names)}, clients={names!r})"


def _names(env: SimEnv | PocEnv, job: FedSMJob, how: str) -> list[str]:
    """The sites of an environment that makes its own."""
    names = list(env.clients or [f"site-{i + 1}" for i in range(env.num_clients)])
    if job.sites and sorted(names) != sorted(job.sites):
        raise UserError(
            f"the job is for {', '.join(job.sites)}, and {how} has {', '.join(names)}",
            remedy=f"give {_given(how, job.sites)}",
        )
    if len(names) < job.job.min_clients:
        raise UserError(f"{how} has {len(names)} sites, and the job needs {job.job.min_clients}")
    return names


def _prepare_simulator(env: SimEnv, job: FedSMJob, resume_from: str) -> None:
    if resume_from.startswith(_JOB):
        raise UserError(f"{resume_from} is kept by a server", remedy="give SimEnv the path of a `checkpoints` folder")
    names = _names(env, job, "SimEnv")
    workspace = Path(env.workspace_root) / job.name
    if not is_plain(workspace):
        raise UserError(f"FLARE's simulator cannot work in {workspace}", remedy="choose a path without blanks")
    check_own_place(workspace)
    job.data = _data_root(env, names, "SimEnv")


def _prepare_poc(env: PocEnv, job: FedSMJob, resume_from: str) -> None:
    if resume_from:
        raise UserError(
            "PocEnv makes a new federation, which keeps no checkpoint",
            remedy="`fedsm poc up` and `fedsm resume`, or ProdEnv with a kit of a POC that runs",
        )
    if env.project_conf_path:
        raise UserError(
            "PocEnv with a project file of your own cannot be given our classes and data",
            remedy="leave project_conf_path out, or use `fedsm poc`",
        )
    names = _names(env, job, "PocEnv")
    job.job.min_clients = len(names)  # FLARE starts a job as soon as so many sites are there, without the others
    root = _data_root(env, names, "PocEnv")
    check_own_place(Path(env.poc_workspace))
    port = env.get_extra_prop(PORT, _POC_PORT)
    if not is_free(port) and not env._check_poc_running():  # FLARE stops a POC of its own
        raise UserError(f"port {port} is in use", remedy=f'stop what listens there, or give extra={{"{PORT}": N}}')
    storage = Path(env.poc_workspace) / "storage"
    folder = tempfile.TemporaryDirectory(prefix="fedsm_")
    env.extra["fedsm_project"] = folder  # it lives as long as the environment
    project = Path(folder.name) / "project.yml"
    content = poc_project(names, root, storage, env.username, port, env.study)
    project.write_text(yaml.safe_dump(content, sort_keys=False))
    env.project_conf_path = str(project)
    env.extra.setdefault("login_timeout", _POC_START)


def _prepare_production(env: ProdEnv, job: FedSMJob, resume_from: str) -> None:
    if env.get_extra_prop(DATA):
        raise UserError(
            "ProdEnv takes no data: each site's fedsm_site.yaml says where its own are", remedy="leave it out"
        )
    if resume_from and not resume_from.startswith(_JOB):
        raise UserError(
            f"a server resumes `{_JOB}ID`, not {resume_from!r}", remedy="`fedsm status --kit KIT` lists the jobs"
        )
    kit = Path(env.startup_kit_location)
    owner = sessions.user_of(kit)
    if env.username == DEFAULT_ADMIN_USER:  # FLARE's default, which is hardly ever who owns the kit
        env.username = owner
    elif env.username != owner:
        raise UserError(f"{kit} is the kit of {owner}, not of {env.username}", remedy="leave `username` out")
    check_connected(sessions.Login(kit, env.study), job.sites or [])
