"""A server that keeps the checkpoint of one job of the lead, trained once for all attacks on it."""

import shutil

import pytest

from tests.helpers.attack_jobs import LEAD, run_job


@pytest.fixture(scope="session")
def trained(tmp_path_factory, data_root):
    """The folder of the server and its sites; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    assert run_job(folder, data_root, "job-1", LEAD).panic is None
    return folder


@pytest.fixture
def server(trained, tmp_path):
    """A copy that an attack may change."""
    return shutil.copytree(trained, tmp_path / "copy")
