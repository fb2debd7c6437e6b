"""A full disk and real kills: the last good checkpoint is always there."""

import os
import subprocess
import sys

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.server.checkpoint import Checkpoints
from tests.helpers.federation import JOB, Federation
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import last_weights

KILLS = 30
# Torch is loaded once; the children are forked from there and killed in the middle of their work.
_SCRIPT = """
import itertools, os, random, signal, sys, time
from pathlib import Path
import torch
from fedsm.server.checkpoint import Checkpoints

torch.set_num_threads(1)
folder, rng, last = Path(sys.argv[1]), random.Random(0), 0

def save_for_ever():
    for number in itertools.count(last + 1):
        files = {f"net{i}": {"w": torch.full((20_000,), float(number))} for i in range(4)}
        best = {"net0": {"round": number, "score": 1.0, "file": Checkpoints.file_name(number, "net0")}}
        Checkpoints(folder).save(number, files, {"best": best})

for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        save_for_ever()
    newer = last
    while newer <= last:  # not the next one: it may be there and gone between two looks
        time.sleep(0.001)
        newer = max((int(found.stem.split("_")[1]) for found in folder.glob("round_*.json")), default=0)
    time.sleep(rng.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    checkpoints = Checkpoints(folder)
    state = checkpoints.load()
    assert state["round"] > last
    last = state["round"]
    for name in [*state["files"].values(), state["best"]["net0"]["file"]]:
        assert (checkpoints.load_weights(name)["w"] == last).all(), name
    print(last, len(list(folder.rglob("*.partial"))), flush=True)
"""


def test_kill_9_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    """A process saves one checkpoint after the other and is killed at a random moment, thirty times; each time the
    newest one is complete and of one round, and the next process goes on from it."""
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    lines = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(lines) == KILLS
    assert any(partial for _, partial in lines), "some were killed in the middle of a file"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_leaves_the_last_good_checkpoint(small_disk):
    """Round 1 fits, round 2 does not: one line that says so, round 1 loads, and nothing half written is in the way."""
    checkpoints = Checkpoints(small_disk)
    checkpoints.save(1, {"net": {"w": torch.ones(250_000)}}, {"best": {}})
    files = {"net": {"w": torch.zeros(250_000)}, "other": {"w": torch.zeros(500_000)}}
    with pytest.raises(
        UserError, match="of round 2 cannot be written .*No space left.*, the last good one is .*; make room"
    ):
        checkpoints.save(2, files, {"best": {}})
    state = checkpoints.load()
    assert state["round"] == 1 and (checkpoints.load_weights(state["files"]["net"])["w"] == 1).all()
    assert [p.name for p in (small_disk / "weights").iterdir()] == ["r000001.net.safetensors"]
    checkpoints.save(2, {"net": files["net"]}, {"best": {}})
    assert checkpoints.load()["round"] == 2, "with room it goes on"


def test_a_full_disk_stops_the_job_and_it_goes_on_when_there_is_room(tmp_path, small_disk, data_root):
    """The disk fills up between rounds: the job stops with a clear line, and resumes to the weights of an undisturbed
    run."""
    settings = small_settings(rounds=3)
    straight = Federation(tmp_path / "straight", data_root, settings, SITES).run()

    def fill(site, task, shareable, work):
        if (small_disk / JOB / "checkpoints" / "round_000001.json").exists() and not (small_disk / "ballast").exists():
            with (small_disk / "ballast").open("wb") as f:
                free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
                f.write(bytes(max(0, free - 65536)))
        return work()

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "server").symlink_to(small_disk)
    stopped = Federation(folder, data_root, settings, SITES, fault=fill).run()
    assert "cannot be written" in stopped.panic and "No space left" in stopped.panic
    assert "make room" in stopped.panic and "fedsm resume RUN" in stopped.panic
    assert Checkpoints(stopped.run_folder / "checkpoints").load()["round"] == 1
    assert "failed" in (stopped.run_folder / "progress.jsonl").read_text().splitlines()[-1]

    saved = tmp_path / "saved"
    subprocess.run(["cp", "-r", str(stopped.run_folder), str(saved)], check=True)
    (folder / "server").unlink()
    resumed = Federation(folder, data_root, settings, SITES, resume_from=str(saved / "checkpoints")).run()
    assert resumed.panic is None
    a, b = last_weights(straight.run_folder), last_weights(resumed.run_folder)
    assert all(torch.equal(a[model][key], b[model][key]) for model in a for key in a[model])
