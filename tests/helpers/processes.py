"""Startup kits as processes of their own, on loopback, ended by pid."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import psutil
import yaml

from app_fedsm.federation import session as sessions
from fedsm.core.errors import UserError
from tests.helpers.folders import ROOT

START_SECONDS = 600


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder, parents first."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        named = any(str(folder) in part for part in process.info["cmdline"] or [])
        if named and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return sorted(found, key=lambda p: p.info["create_time"])


def kill_all(folder: Path) -> None:
    """`kill -9` for everything that runs from a folder; FLARE's watching shell first, or it would start it again."""
    for _ in range(20):
        if not (alive := processes_of(folder)):
            return
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=2)


def without_fedsm(scratch: Path) -> dict[str, str]:
    """The environment of a site that has everything but our package: its own Python, our dependencies.

    The package is installed here by a `.pth` file, which Python reads in its own site folder only, not on PYTHONPATH.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(scratch / "python")], check=True)
    python = scratch / "python" / "bin"
    env = os.environ | {"PATH": f"{python}:{os.environ['PATH']}", "PYTHONPATH": sysconfig.get_path("purelib")}
    found = subprocess.run([python / "python3", "-c", "import torch, nvflare, fedsm"], env=env, capture_output=True)
    assert b"No module named 'fedsm'" in found.stderr, found.stderr.decode()
    return env


def with_wheel(scratch: Path, env: dict[str, str]) -> dict[str, str]:
    """The same after `pip install` of our wheel."""
    target = scratch / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(scratch / "wheel"), str(ROOT)], check=True
    )
    (wheel,) = (scratch / "wheel").glob("fedsm-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return env | {"PYTHONPATH": f"{target}{os.pathsep}{env['PYTHONPATH']}"}


class Running:
    """The processes of provisioned kits.

    Args:
        kits: `fedsm provision`'s.
        lead: the kit of a user who may look.
    """

    def __init__(self, kits, lead: Path):
        self.kits = kits
        self.lead = lead

    def tell_data(self, root: Path, threads: int = 1) -> None:
        """What each hospital does: its data path, in its own file."""
        for site, kit in self.kits.sites.items():
            (kit / "local" / "fedsm_site.yaml").write_text(
                yaml.safe_dump({"data": str(root / site), "threads": threads, "state_dir": str(kit / "state")})
            )

    def start(self, kit: Path, env: dict[str, str]) -> None:
        """Runs the kit's own start.sh."""
        with (kit / "console.log").open("ab") as log:
            subprocess.run(
                ["bash", str(kit / "startup" / "start.sh")], env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, check=True,
            )  # fmt: skip

    def wait_for(self, sites: list[str], seconds: float = START_SECONDS) -> list[str]:
        """Waits until the sites are connected; returns all that are."""
        deadline, here = time.time() + seconds, []
        while time.time() < deadline:
            with contextlib.suppress(UserError), sessions.connect(sessions.Login(self.lead), timeout=2) as session:
                here = sessions.registered(session)
                if set(sites) <= set(here):
                    return here
            time.sleep(0.5)
        raise AssertionError(f"connected: {here}; wanted: {sites}")

    def stop(self, kit: Path) -> None:
        kill_all(kit)
        for name in ("pid.fl", "daemon_pid.fl", "shutdown.fl"):
            (kit / name).unlink(missing_ok=True)

    def stop_all(self) -> None:
        for kit in [*self.kits.sites.values(), *self.kits.relays.values(), self.kits.server]:
            self.stop(kit)
