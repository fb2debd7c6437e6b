"""Real FLARE processes with trainers of their own, and a real `kill -9`."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app_fedsm.cli.main import main
from app_fedsm.runs.simulate import _SITE_LOST
from app_fedsm.runs.workspace import prepare_workspace
from tests.helpers.processes import processes_of
from tests.helpers.small_jobs import SITES, SMALL

MODULE = "fedsm.client.trainer_process"


def trainers_below(simulator: subprocess.Popen) -> list[psutil.Process]:
    """The trainers of a simulator's sites."""
    found = psutil.Process(simulator.pid).children(recursive=True)
    return [p for p in found if p.is_running() and MODULE in p.cmdline()]


@pytest.mark.slow
def test_a_trainer_killed_in_round_2_costs_one_site_one_round(tmp_path, data_root):
    """Rounds are long against what is between them, so the victim is at work when it dies."""
    job = [*SMALL, "--rounds", "4", "--set", "local_epochs=60"]
    assert main(["job", "export", *job, "--out", str(tmp_path)]) == 0
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(tmp_path / "fedsm_retinal")]
    for attempt in range(3):
        workspace = tmp_path / f"ws{attempt}"
        settings = prepare_workspace(workspace, data_root, threads=3) / "fedsm_site.yaml"
        settings.write_text(settings.read_text() + "trainer: process\n")
        folder = workspace / "server" / "simulate_job"
        with (tmp_path / "log").open("wb") as log:
            simulator = subprocess.Popen([*command, "-w", str(workspace), "-n", "3", "-t", "3"], stdout=log, stderr=log)
            victims, deadline = [], time.time() + 900
            while simulator.poll() is None and time.time() < deadline:
                progress = folder / "progress.jsonl"
                if not victims and progress.is_file() and '"round": 1,' in progress.read_text():
                    time.sleep(0.5)
                    victims = trainers_below(simulator)
                    victims[0].kill()
                time.sleep(0.1)
        for process in processes_of(workspace):
            process.kill()
        if not _SITE_LOST.search((tmp_path / "log").read_bytes()):  # FLARE's own race for a port
            break
    assert len(victims) == 3, "each site has a trainer of its own"
    assert (folder / "results.json").is_file(), (tmp_path / "log").read_text()[-3000:]
    history = json.loads((folder / "results.json").read_text())["validation"]["history"]
    missing = [(row["round"], site, why) for row in history for site, why in row["missing"].items()]
    assert len(missing) == 1 and missing[0][0] == 2 and "was ended by SIGKILL" in missing[0][2], missing
    assert [row["answered"] for row in history[2:]] == [SITES, SITES]
    assert not any(p.is_running() for p in victims), "nobody is left"
