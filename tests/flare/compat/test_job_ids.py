"""Workaround: `fedsm.flare.compat.job_ids`.

Symptom: a job whose `meta.json` has a `job_id` gets that id, and FLARE empties the folder of that name in the kit, such
as `startup`. FLARE 2.9.0. With the workaround: `tests/attacks/test_job_ids.py`.
"""

from unittest.mock import Mock

import pytest
from nvflare.apis import workspace
from nvflare.apis.impl import job_def_manager
from nvflare.private.fed.server import job_meta_validator
from nvflare.private.fed.utils import app_deployer

from tests.helpers.pristine import pristine
from tests.helpers.zipped_jobs import zipped_job

NAMES = ["startup", "local", "fedsm_runs", "fedsm_state", "simulate_job"]


@pytest.mark.parametrize("name", NAMES)
def test_flare_gives_a_job_the_id_that_it_asks_for(name):
    valid, error, found = pristine(job_meta_validator).JobMetaValidator().validate("job", zipped_job({"job_id": name}))
    assert valid and not error
    manager = pristine(job_def_manager).SimpleJobDefManager(uri_root="jobs")
    manager._get_job_store = lambda fl_ctx: Mock()
    assert manager.create(found, b"", Mock())["job_id"] == name


@pytest.mark.parametrize("name", NAMES)
def test_flare_empties_the_folder_of_that_name(name, tmp_path):
    for folder in {"startup", "local", name}:
        (tmp_path / folder).mkdir()
    (tmp_path / name / "precious").write_text("precious")
    kit = pristine(workspace).Workspace(str(tmp_path), "site-1")
    pristine(app_deployer).AppDeployer().deploy(kit, name, {}, "app", zipped_job({}), Mock())
    assert not (tmp_path / name / "precious").exists()
