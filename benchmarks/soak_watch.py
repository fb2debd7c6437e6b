"""What the soak sees of a POC's memory and disk while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import psutil

from app_fedsm.federation.poc import SERVER, Poc
from benchmarks.soak_fire import JOB, SERVER_JOB, TRAINER, command_of
from fedsm.server.checkpoint import FOLDER
from fedsm.server.checkpoint_dirs import RUNS

_EVERY = 10.0  # seconds between looks


class Watch:
    """Looks at memory and disk every few seconds, and keeps what it saw in a file.

    Args:
        poc: the federation.
        file: gets a line for each look.
    """

    def __init__(self, poc: Poc, file: Path):
        self._poc = poc
        self._file = file
        self._next = 0.0
        self._samples: list[dict] = []

    def look(self, job: int) -> None:
        """Looks, if it is time; `job`: the job's number, from 1."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY
        seen = {"time": time.time(), "job": job, "memory": memory_of(self._poc), "disk": disk_of(self._poc)}
        self._samples.append(seen | {"trainers": len(trainers_of(self._poc))})
        with self._file.open("a") as f:
            f.write(json.dumps(self._samples[-1]) + "\n")

    def growth(self, role: str) -> float:
        """Median memory of a role in the last third of the looks, over that in the first third."""
        seen = [size for sample in self._samples if (size := sample["memory"].get(role))]
        third = max(1, len(seen) // 3)
        return _median(seen[-third:]) / _median(seen[:third]) if seen else 0.0

    def figures(self) -> dict:
        """Peaks and medians of memory, and the disk after each job."""
        roles = sorted({role for sample in self._samples for role in sample["memory"]})
        by_role = {role: [sample["memory"].get(role, 0) for sample in self._samples] for role in roles}
        last = {sample["job"]: sample["disk"] for sample in self._samples}
        return {
            "looks": len(self._samples),
            "memory_peak": {role: max(sizes) for role, sizes in by_role.items()},
            "memory_median": {role: _median(sizes) for role, sizes in by_role.items()},
            "trainers_at_most": max((sample["trainers"] for sample in self._samples), default=0),
            "disk_after_each_job": [last[job] for job in sorted(last)],
        }


def memory_of(poc: Poc) -> dict[str, int]:
    """Role -> resident bytes of all processes of that role now: `server`, `sites`, and the same in jobs."""
    found: dict[str, int] = {}
    for process in [*poc.processes(), *trainers_of(poc)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            words = command_of(process)
            side = "server" if str(poc.kits / SERVER) in words else "sites"
            role = f"{side}, in jobs" if any(word in words for word in (JOB, SERVER_JOB, TRAINER)) else side
            found[role] = found.get(role, 0) + process.memory_info().rss
    return found


def disk_of(poc: Poc) -> dict[str, int]:
    """Part -> bytes on the disk: FLARE's store of jobs, the server's checkpoints, its other files, the sites'."""
    server = poc.kits / SERVER
    found = {"job_store": _size(poc.flare / "storage"), "checkpoints": _size(server / RUNS)}
    found["server"] = _size(server) - found["checkpoints"]
    return found | {"sites": sum(_size(poc.kits / site) for site in poc.note["sites"])}


def kept_rounds(poc: Poc) -> dict[str, int]:
    """Job -> rounds whose checkpoints the server keeps, of the jobs that it keeps some of."""
    folders = (poc.kits / SERVER / RUNS).glob(f"*/{FOLDER}")
    counts = {folder.parent.name: len(list(folder.glob("round_*.json"))) for folder in folders}
    return {job: count for job, count in counts.items() if count}


def kept_states(poc: Poc) -> int:
    """The most rounds of one run whose optimizers a site keeps."""
    runs = [path.parent for site in poc.note["sites"] for path in (poc.kits / site).rglob("round_*.safetensors")]
    return max((runs.count(run) for run in runs), default=0)


def trainers_of(poc: Poc) -> list[psutil.Process]:
    """Its trainers, also those whose site was killed: their command does not name it, but their environment does."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if TRAINER in command_of(process) and process.environ().get("HOME") == str(poc.folder.parent / "home"):
                found.append(process)
    return found


def _size(folder: Path) -> int:
    """Bytes on the disk; what is removed meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(folder):  # it passes over folders that have gone
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
