"""Rows 2, 3, 7 and 13 again, by the id of a job. FLARE takes the id that a lead writes into `meta.json`.

With the simulator's id our server held a lead's job for a simulation: paths were followed, and checkpoints had no
owner. With the name of a folder FLARE emptied that folder, at the server and at every hospital: `startup`, `fedsm_runs`
with everybody's checkpoints, `fedsm_state` with the list of the statistics that a hospital has given away.
"""

import json
import shutil

import pytest
from nvflare.apis import workspace
from nvflare.apis.job_def import new_job_id
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.server import job_meta_validator
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from app_fedsm.provisioning.kits import fill_server, fill_site
from fedsm.core.components import JOB_ID_GUARD
from fedsm.core.task_names import SIMULATED_JOB
from fedsm.flare.compat import job_ids
from fedsm.flare.forget_controller import ForgetController
from tests.helpers.attack_jobs import FOLDER, LEAD, OTHER, bytes_of, kept, run_job
from tests.helpers.class_lists import write_default_resources
from tests.helpers.small_jobs import small_settings
from tests.helpers.zipped_jobs import zipped_job

UUID = "8b5f8a1c-6d0e-4a53-9d7b-0f3c1f2e4a55"
FOLDERS = ["startup", "local", "fedsm_runs", "fedsm_state", "fedsm_cache"]


def test_the_simulators_id_opens_no_path_to_forget(server, data_root, tmp_path):
    """A run's folder by its path: it is another program's, or another user's."""
    run = shutil.copytree(kept(server, "job-1"), tmp_path / "elsewhere")
    before = bytes_of(run)
    job = run_job(server, data_root, SIMULATED_JOB, OTHER, controller=ForgetController("site-2", str(run / FOLDER)))
    assert job.panic is not None and "never a path on the server" in job.panic
    assert bytes_of(run) == before


@pytest.mark.parametrize("how", ["path", "job"])
def test_the_simulators_id_takes_nobodys_checkpoint(server, data_root, how):
    theirs = kept(server, "job-1")
    before = bytes_of(theirs)
    source = {"path": str(theirs / FOLDER), "job": "job:job-1"}[how]
    settings = small_settings(rounds=2)
    job = run_job(server, data_root, SIMULATED_JOB, OTHER, settings=settings, resume_from=source)
    assert job.panic is not None and ("never a path" in job.panic or "is not other@b.org's" in job.panic)
    assert bytes_of(theirs) == before and not list(job.run_folder.rglob("*.safetensors"))


def test_a_job_with_the_simulators_id_has_an_owner(tmp_path, data_root):
    assert run_job(tmp_path, data_root, SIMULATED_JOB, LEAD).panic is None
    owner = json.loads((kept(tmp_path, SIMULATED_JOB) / "owner.json").read_text())
    assert owner["name"] == LEAD["submitter_name"]


@pytest.fixture
def guarded(monkeypatch):
    """A process in which FLARE has made the component of a kit; put back after the test."""
    for module in (workspace, job_meta_validator):
        monkeypatch.setattr(module, "check_job_id", module.check_job_id)
    job_ids.JobIdGuard()


@pytest.mark.parametrize("name", [*FOLDERS, SIMULATED_JOB, "job-1", f"{UUID}\n", f"{UUID}.x"])
def test_a_kit_takes_no_id_that_a_job_asks_for(guarded, tmp_path, name):
    """Neither when it is submitted, nor when it arrives at a site, whatever the server says."""
    valid, error, _ = JobMetaValidator().validate("job", zipped_job({"job_id": name}))
    assert not valid and "leave job_id out of meta.json" in error
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "precious").write_text("precious")
    kit = Workspace(str(tmp_path), "site-1")
    with pytest.raises(Exception, match="cannot choose its own id"):
        AppDeployer().deploy(kit, name, {}, "app", zipped_job({}), None)
    assert all((tmp_path / folder / "precious").is_file() for folder in FOLDERS)
    with pytest.raises(ValueError, match="cannot choose its own id"):
        kit.get_run_dir(name)  # what FLARE's command to delete a job's folder asks for


def test_a_kit_takes_flares_ids(guarded, tmp_path):
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    assert JobMetaValidator().validate("job", zipped_job({}))[0]
    assert Workspace(str(tmp_path), "site-1").get_run_dir(new_job_id()).startswith(str(tmp_path))


@pytest.mark.parametrize("fill", [fill_site, lambda kit, byoc: fill_server(kit, kit / "storage", byoc)])
@pytest.mark.parametrize("byoc", [False, True])
def test_kits_that_forbid_code_have_the_guard(tmp_path, fill, byoc):
    """Where code may come with a job, it can do all that and more."""
    write_default_resources(tmp_path)
    fill(tmp_path, byoc=byoc)
    for name in ("resources.json", "resources.json.default"):
        components = json.loads((tmp_path / "local" / name).read_text())["components"]
        assert (JOB_ID_GUARD in components) == (not byoc)
