"""A run in the simulator that is stopped or killed, and what is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app_fedsm.cli.main import main
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.json_output import document
from tests.helpers.processes import processes_of
from tests.helpers.small_jobs import SMALL

LONG = 600  # seconds for what takes a few on a quiet machine


def start(out: Path, data_root: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "app_fedsm.cli.main", "run", *SMALL, "--data", str(data_root), "--out", str(out)]
    return subprocess.Popen(
        [*command, "--rounds", "4", "--selector", "gradient", "--format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip


def start_and_wait_for_round_1(out: Path, data_root: Path) -> subprocess.Popen:
    process = start(out, data_root)
    progress = out / "workspace" / "server" / "simulate_job" / "progress.jsonl"
    deadline = time.monotonic() + LONG
    while not (progress.is_file() and '"round": 1,' in progress.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_kill_9_of_everything_and_resume_gives_the_same_weights(tmp_path, data_root):
    """The command and every FLARE process are killed at once, as by a power cut."""
    out = tmp_path / "out"
    process = start_and_wait_for_round_1(out, data_root)
    for victim in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        victim.kill()
    process.communicate(timeout=LONG)
    assert not (out / "results.json").exists()
    assert main(["run", "--resume", "--out", str(out)]) == 0
    assert_equals_plain_loop(out, data_root, rounds=4)


@pytest.mark.slow
def test_a_killed_simulator_leaves_no_orphans(tmp_path, data_root):
    """The simulator's parent process is killed, as for want of memory: its workers do not go on by themselves."""
    out = tmp_path / "out"
    process = start_and_wait_for_round_1(out, data_root)
    simulator = psutil.Process(process.pid).children()[0]
    simulator.kill()
    told, err = process.communicate(timeout=LONG)
    assert process.returncode == 1 and "last checkpoint" in err
    assert document(told, 1)["error"]["code"] == "JOB_FAILED"
    assert not processes_of(out)


@pytest.mark.slow
def test_sigterm_stops_like_ctrl_c(tmp_path, data_root):
    out = tmp_path / "out"
    process = start_and_wait_for_round_1(out, data_root)
    process.terminate()
    _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130 and "last checkpoint" in err
    assert not processes_of(out)


def test_a_run_that_is_stopped_before_its_first_checkpoint_is_not_told_to_go_on(tmp_path, data_root):
    out = tmp_path / "out"
    process = start(out, data_root)
    while not (out / "flare.log").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    told, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert "no checkpoint was written yet; start again with the same command and --force" in err
    assert "fedsm resume" not in err and "--resume" not in err and not processes_of(out)
    data = document(told, 130)["data"]
    assert (data["state"], data["checkpoint"], data["commands"]) == ("stopped", None, {})
    assert main(["resume", str(out)]) == 2, "there is nothing to go on from"


@pytest.mark.slow
def test_ctrl_c_stops_everything_and_resume_gives_the_same_weights(tmp_path, data_root):
    out = tmp_path / "out"
    process = start_and_wait_for_round_1(out, data_root)
    process.send_signal(signal.SIGINT)
    told, err = process.communicate(timeout=LONG)
    if process.returncode == 0:
        pytest.skip("the run was over before it could be stopped")
    assert process.returncode == 130, err
    assert "last checkpoint: " in err and f"go on with: fedsm resume {out}\n" in err
    assert not processes_of(out)
    checkpoint = Path(err.split("last checkpoint: ")[1].splitlines()[0])
    assert checkpoint.is_file()
    data = document(told, 130)["data"]
    assert (data["state"], data["checkpoint"]) == ("stopped", str(checkpoint)) and 1 <= data["rounds_done"] <= 4
    assert data["commands"] == {"resume": f"fedsm resume {out}"}

    assert main(["run", "--resume", "--out", str(out)]) == 0
    assert_equals_plain_loop(out, data_root, rounds=4)
    assert len(json.loads((out / "results.json").read_text())["validation"]["history"]) == 4
