"""Rows 2, 4, 8 and 21, the same holes elsewhere: recipes in FLARE's own environments, which know nothing of our rules.

`SimEnv` and `PocEnv` wrote with the umask of whoever called them: the root key of a POC, weights and results were open
to every account of the machine.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from nvflare.job_config.fed_job_config import FedJobConfig
from nvflare.recipe import PocEnv, SimEnv

from app_fedsm.recipes import EvaluationRecipe, FedSMRecipe, ForgetRecipe
from fedsm.core.errors import UserError
from tests.helpers.class_lists import assert_allows_our_jobs_alone
from tests.helpers.open_files import open_to_others, open_umask
from tests.helpers.processes import free_port, kill_all
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_model import write_super_model


@pytest.fixture(autouse=True)
def _open_umask():
    with open_umask():
        yield
        assert os.umask(0) == 0, "a recipe gives its caller's umask back"


def small_recipe(name: str = "small") -> FedSMRecipe:
    return FedSMRecipe(name, settings=small_settings(method="fedavg", rounds=1))


@pytest.fixture
def poc_env(tmp_path, data_root, monkeypatch) -> PocEnv:
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    return PocEnv(num_clients=2, extra={"data": str(data_root), "port": free_port()})


@pytest.fixture
def kits(tmp_path, poc_env, monkeypatch) -> Path:
    """What `PocEnv` provisions; its processes are not started."""
    monkeypatch.setattr("nvflare.recipe.poc_env._start_poc", lambda **given: None)
    monkeypatch.setattr("nvflare.recipe.poc_env.SERVICE_START_TIMEOUT", 0)
    monkeypatch.setattr(PocEnv, "_get_session_manager", lambda self: self)
    monkeypatch.setattr(PocEnv, "submit_job", lambda self, job: "job-1", raising=False)
    small_recipe().run(poc_env)
    return tmp_path / "poc" / "example_project" / "prod_00"


@pytest.mark.process
def test_the_keys_of_a_poc_are_closed(tmp_path, kits):
    assert next((tmp_path / "poc").rglob("state/cert.json")).is_file(), "the root key"
    assert open_to_others(tmp_path / "poc") == []


@pytest.mark.process
def test_a_poc_that_is_started_again_by_hand_writes_for_its_owner_alone(kits):
    scripts = [script for kit in kits.iterdir() for script in (kit / "startup").glob("*.sh")]
    assert len(scripts) > 4
    for script in scripts:
        assert script.read_text().splitlines()[1].startswith("umask 077") and os.access(script, os.X_OK)


@pytest.mark.process
def test_a_poc_allows_what_our_jobs_name_and_nothing_else_of_ours(kits):
    for name in ("server", "site-1", "site-2"):
        assert_allows_our_jobs_alone(kits / name, server=name == "server")


@pytest.fixture
def sim_env(tmp_path, data_root) -> SimEnv:
    """The folder was there before, open to all."""
    (tmp_path / "ws" / "small" / "local").mkdir(parents=True)
    return SimEnv(num_clients=2, workspace_root=str(tmp_path / "ws"), extra={"data": str(data_root)})


def test_a_simulation_begins_closed(tmp_path, sim_env, monkeypatch):
    """What we write before FLARE's simulator starts, and the umask that its processes inherit."""

    def simulator_run(self, workspace, **given) -> int:
        self.generate_job_config(f"{workspace}/jobs")
        (Path(workspace) / "server" / "simulate_job").mkdir(parents=True)
        (Path(workspace) / "server" / "simulate_job" / "progress.jsonl").write_text('{"event": "started"}\n')
        return 0

    monkeypatch.setattr(FedJobConfig, "simulator_run", simulator_run)
    small_recipe().execute(sim_env)
    assert (tmp_path / "ws" / "small" / "local" / "fedsm_site.yaml").is_file()
    assert open_to_others(*(tmp_path / "ws").iterdir()) == []


@pytest.mark.slow
def test_a_simulation_is_closed(tmp_path, sim_env):
    run = small_recipe().execute(sim_env)
    assert (Path(run.get_result()) / "server" / "simulate_job" / "results.json").is_file()
    assert (tmp_path / "ws" / "cache").is_dir() and open_to_others(*(tmp_path / "ws").iterdir()) == []


@pytest.mark.slow
def test_a_poc_of_real_processes_is_closed(tmp_path, poc_env):
    """Kits, storage, logs, the sites' state and cache, and the downloaded result."""
    try:
        result = small_recipe().execute(poc_env).get_result(clean_up=False)
        assert list(Path(result).rglob("results.json"))
        assert open_to_others(tmp_path / "poc") == []
    finally:
        kill_all(tmp_path / "poc")


@pytest.mark.parametrize("kind", ["sim", "poc"])
def test_a_workspace_that_another_account_made_is_refused(tmp_path, data_root, monkeypatch, kind):
    """FLARE's defaults are known names in the temporary folder: whoever is there first could change what is run."""
    shared = tmp_path / "shared"
    (shared / "nvflare").mkdir(parents=True)
    shared.chmod(0o1777)
    workspace = str(shared / "nvflare" / "workspace")
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", workspace)
    data = {"num_clients": 2, "extra": {"data": str(data_root), "port": free_port()}}
    env = SimEnv(workspace_root=workspace, **data) if kind == "sim" else PocEnv(**data)
    stranger = os.getuid() + 12345
    monkeypatch.setattr("fedsm.core.private_files._owner", lambda p: stranger if p.name == "nvflare" else os.getuid())
    with pytest.raises(UserError, match="nvflare belongs to another account"):
        small_recipe().run(env)
    assert not Path(workspace).exists()


@pytest.mark.parametrize("name", ["../outside", "a b", "-w", "a/b"])
def test_the_name_of_a_job_is_no_path(name):
    with pytest.raises(UserError, match="name of a job"):
        FedSMRecipe(name, settings=small_settings())


def test_names_of_sites_are_no_paths():
    with pytest.raises(UserError, match="site's name"):
        FedSMRecipe(settings=small_settings(), sites=["site-1", "../site-2"])
    with pytest.raises(UserError, match="site's name"):
        ForgetRecipe(site="../site-1", run="job:1", witness="site-2")


def test_a_super_model_from_elsewhere_takes_no_file_of_ours_along(tmp_path):
    """A link in its folder was followed, and what it led to went to the server with the job."""
    model = write_super_model(tmp_path)
    (tmp_path / "id_rsa").write_text("private key")
    (model / "notes.txt").symlink_to(tmp_path / "id_rsa")
    with pytest.raises(UserError, match=r"notes.txt is a link"):
        EvaluationRecipe(model=model, sites=SITES).export(str(tmp_path / "jobs"))
    assert not [p for p in (tmp_path / "jobs").rglob("*") if p.is_file() and b"private key" in p.read_bytes()]


def test_a_super_model_that_is_reached_by_a_link_is_taken(tmp_path):
    model = write_super_model(tmp_path)
    (tmp_path / "latest").symlink_to(model)
    EvaluationRecipe(model=tmp_path / "latest", sites=SITES).export(str(tmp_path / "jobs"))
    sent = tmp_path / "jobs" / "evaluate" / "app_server" / "config" / "super_model"
    assert json.loads((sent / "manifest.json").read_text()) and not sent.is_symlink()
    shutil.rmtree(sent)
    assert (model / "manifest.json").is_file()
