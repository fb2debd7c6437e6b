"""Row 2, the same hole elsewhere: a job's configuration must not call whatever the package can do.

FLARE calls the object at a component's path with the configuration's arguments. With `fedsm.` in `class_allow_list` a
job that brings no code could write any file with `fedsm.server.checkpoint.save_file`.
"""

import contextlib
import inspect

import pytest
from nvflare.fuel.utils.class_utils import instantiate_class

from app_fedsm.provisioning.kits import fill_server, fill_site
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from fedsm.core.errors import UserError
from fedsm.core.moved import MOVED
from tests.helpers.class_lists import assert_allows_our_jobs_alone, write_default_resources


@pytest.fixture(params=["server", "site"])
def kit(request, tmp_path):
    """A kit's `local/` as provisioning leaves it."""
    write_default_resources(tmp_path)
    fill_site(tmp_path) if request.param == "site" else fill_server(tmp_path, tmp_path / "storage")
    return request.param, tmp_path


def test_a_kit_allows_what_our_jobs_name_and_nothing_else_of_ours(kit):
    kind, folder = kit
    assert_allows_our_jobs_alone(folder, server=kind == "server")


def test_flare_would_have_called_a_function(tmp_path):
    """Why it matters: no class is asked for, and what a module imports is there too."""
    instantiate_class("fedsm.server.checkpoint.save_file", {"tensors": {}, "filename": str(tmp_path / "any")})
    assert (tmp_path / "any").is_file()


@pytest.mark.parametrize("path", [p for p in (*SITE_CLASSES, *SERVER_CLASSES) if p not in MOVED])
def test_no_class_that_a_job_names_does_anything_when_it_is_made(path, tmp_path, monkeypatch):
    """Whatever the arguments: they are looked at when the job runs, by those who know whose job it is."""
    monkeypatch.chdir(tmp_path)
    module, _, name = path.rpartition(".")
    cls = getattr(__import__(module, fromlist=[name]), name)
    wanted = [p for p in inspect.signature(cls.__init__).parameters if p not in ("self", "args", "kwargs")]
    with contextlib.suppress(UserError):  # an argument that is refused
        instantiate_class(path, {name: str(tmp_path / "made" / name) for name in wanted})
    assert list(tmp_path.iterdir()) == []
