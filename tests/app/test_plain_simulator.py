"""FLARE's own `nvflare simulator` on an exported job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app_fedsm.cli.main import main
from app_fedsm.jobs import write_job
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.folders import JOBS
from tests.helpers.plain_simulator import plain_simulator
from tests.helpers.small_jobs import SMALL, small_settings


@pytest.mark.slow
def test_plain_nvflare_simulator_with_fewer_threads_than_sites(tmp_path, data_root):
    """A new process for each task, the same weights."""
    arguments = ["job", "export", *SMALL, "--rounds", "1", "--selector", "gradient", "--out", str(tmp_path)]
    assert main(arguments) == 0
    folder = plain_simulator(tmp_path / "fedsm_retinal", tmp_path, data_root, threads=2)
    assert_equals_plain_loop(folder, data_root, rounds=1)


def simulate(job, workspace, env, threads=3) -> subprocess.CompletedProcess:
    """`nvflare simulator` on a workspace that nobody prepared."""
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(job), "-w", str(workspace)]
    return subprocess.run([*command, "-n", "3", "-t", str(threads)], env=env, capture_output=True, text=True)


def test_an_unprepared_workspace_without_data_is_told_what_is_missing(tmp_path):
    """One line names both ways to give it, and the process ends with an error. No site was asked."""
    env = {key: value for key, value in os.environ.items() if key != "FEDSM_DATA"}
    done = simulate(JOBS / "fedsm_retinal", tmp_path / "ws", env)
    told = done.stdout + done.stderr
    (line,) = {line.split("nobody says")[1] for line in told.splitlines() if "nobody says" in line and "fedsm" in line}
    assert "FEDSM_DATA" in line and "fedsm workspace WS --data ROOT" in line
    assert done.returncode != 0, told[-2000:]
    assert "registered" not in told


@pytest.mark.slow
def test_an_unprepared_workspace_with_data(tmp_path, data_root):
    write_job("small", small_settings(rounds=1, selector="gradient"), tmp_path)
    done = simulate(tmp_path / "small", tmp_path / "ws", os.environ | {"FEDSM_DATA": str(data_root)})
    assert done.returncode == 0, done.stdout[-3000:]
    assert_equals_plain_loop(tmp_path / "ws" / "server" / "simulate_job", data_root, rounds=1)
