"""Row 22: updates that a killed server had received lie in a folder of its own, and the next job removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

from fedsm.flare.compat.memory import received_to_disk
from fedsm.flare.forget_controller import ForgetController
from tests.helpers.cells import ROOT_DIR, Cell, engine_of
from tests.helpers.federation import Federation
from tests.helpers.open_files import open_umask
from tests.helpers.small_jobs import SITES, small_settings

# A server's job process that has received an update and waits for more.
_SERVER = """
import sys, time
from pathlib import Path
from tests.helpers.cells import ROOT_DIR, engine_of
from fedsm.flare.compat.memory import received_to_disk

engine = engine_of(Path(sys.argv[1]))
with received_to_disk(engine, "job-1"):
    folder = Path(engine.get_cell().context[ROOT_DIR])
    (folder / "update.safetensors").write_bytes(b"weights of a hospital")
    print(folder, flush=True)
    time.sleep(600)
"""


def received(root: Path, job_id: str = "job-2") -> Path:
    """Where a job that starts now receives; it ends at once."""
    engine = engine_of(root)
    with received_to_disk(engine, job_id):
        return Path(engine.get_cell().context[ROOT_DIR])


def started(root: Path) -> tuple[subprocess.Popen, Path]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(root)], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_what_a_killed_job_left_is_removed_by_the_next_and_a_living_one_is_left_alone(tmp_path):
    root = tmp_path / "server"
    with open_umask():
        killed, left = started(root)
        living, held = started(root)
    try:
        assert left.is_relative_to(root) and not left.is_relative_to(root / "job-1"), "FLARE packs the job's own folder"
        assert not [f for f in (left.parent, left, held) if f.stat().st_mode & 0o077], "nobody else gets in"
        kill(killed)
        assert (left / "update.safetensors").is_file(), "nobody could remove it"
        mine = received(root)
        assert not left.exists() and not mine.exists() and (held / "update.safetensors").is_file()
    finally:
        kill(living)
    received(root)
    assert [path.name for path in (root / "fedsm_incoming").iterdir()] == [".lock"]


def test_any_job_of_ours_removes_them(tmp_path):
    """Also one that receives nothing, such as `fedsm forget`'s."""
    root = tmp_path / "server"
    killed, left = started(root)
    kill(killed)
    fl_ctx = Mock()
    fl_ctx.get_engine.return_value = engine_of(root)
    fl_ctx.get_job_id.return_value = "job-3"
    ForgetController("site-1", "job:job-1").start_controller(fl_ctx)
    assert not left.exists()


def test_a_job_leaves_nothing_in_the_temporary_folder_or_in_what_is_downloaded(data_root, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    cell = Cell()
    federation = Federation(tmp_path / "run", data_root, small_settings(rounds=1), SITES)
    federation.engine.get_cell = lambda: cell
    seen = []
    cell.update_fobs_context = lambda props: seen.append(props[ROOT_DIR])
    assert federation.run().panic is None
    assert seen[0].startswith(str(tmp_path / "run" / "server" / "fedsm_incoming")) and not Path(seen[0]).exists()
    assert not list((tmp_path / "tmp").glob("nvflare*")) and not list(federation.run_folder.rglob("*incoming*"))
