"""A workspace whose path FLARE's simulator cannot use is reached by a link."""

import inspect
import tempfile

import pytest

from app_fedsm.runs.workspace import is_plain, plain_path
from fedsm.core.errors import UserError


@pytest.mark.parametrize("path", ["/a b", "/a'b", '/a"b', "/a\\b", "/a\tb", "/a\nb"])
def test_a_link_leads_to_a_path_that_a_shell_would_cut(tmp_path, path):
    workspace = tmp_path / path[1:] / "workspace"
    workspace.mkdir(parents=True)
    assert not is_plain(workspace)
    with plain_path(workspace) as link:
        assert is_plain(link) and link.resolve() == workspace and not link.is_symlink()
    assert not link.parent.is_symlink() and workspace.is_dir()


def test_a_plain_path_is_taken_as_it_is(tmp_path):
    assert is_plain(tmp_path)
    with plain_path(tmp_path / "workspace") as path:
        assert path == tmp_path / "workspace"


def test_a_temporary_folder_with_blanks_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "my tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my tmp"))
    with pytest.raises(UserError, match="choose an --out without blanks"), plain_path(tmp_path / "a b" / "workspace"):
        pass
    assert not list((tmp_path / "my tmp").iterdir())


def test_flare_still_needs_it():
    """2.9 puts the workspace into a worker's command as it is, and cuts the command with shlex."""
    from nvflare.private.fed.app.simulator.simulator_runner import SimulatorClientRunner

    source = inspect.getsource(SimulatorClientRunner.do_one_task)
    assert "+ client_workspace\n" in source and "shlex.split(command" in source, "`plain_path` may go"
