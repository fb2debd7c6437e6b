"""A job folder under plain `nvflare simulator`, with nothing of ours around it but the workspace's `local/`."""

import contextlib
import subprocess
import sys
from pathlib import Path

from app_fedsm.runs.simulate import _SITE_LOST
from app_fedsm.runs.workspace import prepare_workspace
from fedsm.data.site_folder import list_sites
from tests.helpers.processes import processes_of


def plain_simulator(job: Path, scratch: Path, data_root: Path, threads: int) -> Path:
    """`nvflare simulator JOB -w WS -n SITES -t THREADS`; returns the server's folder of the job."""
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(job)]
    sites = len(list_sites(data_root))
    for attempt in range(3):
        workspace = scratch / f"ws{attempt}"
        prepare_workspace(workspace, data_root, threads=sites)
        run = [*command, "-w", str(workspace), "-n", str(sites), "-t", str(threads)]
        with (scratch / "log").open("wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(run, stdout=log, stderr=log, timeout=1800)
        for process in processes_of(workspace):
            process.kill()
        if not _SITE_LOST.search((scratch / "log").read_bytes()):  # FLARE's own race for a port
            break
    folder = workspace / "server" / "simulate_job"
    assert (folder / "results.json").is_file(), (scratch / "log").read_text()[-3000:]
    return folder
