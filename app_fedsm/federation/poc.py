"""A federation of separate processes on this machine: a thin layer over `nvflare poc`.

DIR/
  poc.json      the sites, their data, the port: what `up` was asked for
  project.yml   FLARE's project file
  flare/        `nvflare poc`'s workspace (NVFLARE_POC_WORKSPACE): kits, jobs, results
  data/         synthetic sites, where no data were given
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import time
from pathlib import Path

import psutil
import yaml
from tqdm import tqdm

from app_fedsm.federation import session as sessions
from app_fedsm.federation.nvflare_cli import run_nvflare
from app_fedsm.provisioning.kits import close_kit, fill_server, fill_site
from fedsm.client.site_settings import FILE_NAME
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.private_files import close_to_others

PROJECT = "fedsm_poc"
SERVER = "server"
ADMIN, LEAD = "admin@fedsm.org", "lead@fedsm.org"
ORG = "fedsm"
_NOTE = "poc.json"
_START_SECONDS = 180  # until every site is connected
_STOP_SECONDS = 30
# After a job the server waits this long for the last message of a lost site. FLARE's default is 15 minutes, and it can
# be changed in the environment only.
_SERVER = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "30"}


class Poc:
    """One POC federation in a folder.

    Args:
        folder: its folder; made by `prepare`.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.flare = self.folder / "flare"
        if " " in str(self.flare):
            raise UserError(
                f"{self.folder}: `nvflare poc` cannot start from a path with blanks", remedy="choose another --dir"
            )

    @property
    def note(self) -> dict:
        """What `prepare` was asked for.

        Raises:
            UserError: there is no POC here.
        """
        try:
            return json.loads((self.folder / _NOTE).read_text())
        except (OSError, ValueError) as e:
            raise UserError(f"{self.folder} holds no POC", remedy=f"`{self._command('up')}` makes one") from e

    @property
    def kits(self) -> Path:
        """The folder with a kit for each participant."""
        return self.flare / PROJECT / "prod_00"

    @property
    def lead(self) -> Path:
        """The kit of the user who submits."""
        return self.kits / LEAD

    def prepare(self, root: Path, sites: list[str], port: int, device: str | None) -> None:
        """Makes the kits and writes each site's data folder to its kit. A POC of the same sites and port is reused.

        Raises:
            UserError: the folder holds something else, or the port is taken.
        """
        asked = {"data": str(root.resolve()), "sites": sites, "port": port, "device": device}
        if (self.folder / _NOTE).is_file():
            if self.note != asked:
                differs = next(key for key in asked if self.note.get(key) != asked[key])
                raise UserError(
                    f"{self.folder} holds a POC with other {differs}", remedy=f"`{self._command('down')}` first"
                )
            close_to_others(self.flare)  # an earlier version left the keys open
            return
        if self.flare.exists() and not (self.folder / "project.yml").is_file():
            raise UserError(f"{self.flare} exists and is not a POC of `fedsm poc`", remedy="choose another --dir")
        if not is_free(port):
            raise UserError(f"port {port} is in use", remedy="stop what listens there, or choose another with --port")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "project.yml").write_text(yaml.safe_dump(_project(sites, port), sort_keys=False))
        self._nvflare("prepare", "-i", str(self.folder / "project.yml"), "--force")
        # Our server settings keep the storage in FLARE's workspace, as FLARE's own do, and also allow our classes.
        (self.kits / SERVER / "local" / "resources.json").unlink(missing_ok=True)
        fill_server(self.kits / SERVER, self.flare / "storage")
        threads = max(1, (os.cpu_count() or 1) // len(sites))
        for site in sites:
            own = {"data": f"{asked['data']}/{site}", "threads": threads} | ({"device": device} if device else {})
            fill_site(self.kits / site)
            (self.kits / site / "local" / FILE_NAME).write_text(yaml.safe_dump(own))
        for kit in self.kits.iterdir():
            close_kit(kit)
        close_to_others(self.flare)  # the root key
        write_json(self.folder / _NOTE, asked)  # last: it shows that the POC is complete

    def start(self, gpus: list[int] | None = None) -> None:
        """Starts the processes that do not run yet, and waits until every site is connected.

        Raises:
            UserError: some did not connect; it names them and their logs.
        """
        options = ["-gpu", *map(str, gpus)] if gpus else []
        self._nvflare("start", "--no-wait", *options)
        wanted, deadline = self.note["sites"], time.monotonic() + _START_SECONDS
        with tqdm(total=len(wanted), unit="site", desc="connecting", disable=None) as bar:
            while True:
                here = [site for site in self.connected() if site in wanted]
                bar.update(len(here) - bar.n)
                if len(here) == len(wanted):
                    return
                if time.monotonic() > deadline:
                    late = next(site for site in wanted if site not in here)
                    raise UserError(
                        f"{len(here)} of {len(wanted)} sites connected in {_START_SECONDS} s",
                        remedy=f"{late} says why in {self.kits / late / 'log.txt'}; `fedsm poc up` may be called again",
                    )
                time.sleep(1)

    def connected(self) -> list[str]:
        """The sites that are connected; none where no server answers."""
        with contextlib.suppress(UserError), sessions.connect(sessions.Login(self.lead), timeout=2) as session:
            return sessions.registered(session)
        return []

    def stop(self) -> None:
        """Stops all processes: first by `nvflare poc stop`, then those that are left by pid."""
        with contextlib.suppress(UserError):  # processes that do not answer are ended below
            self._nvflare("stop", "--no-wait")
        for kit in self.kits.glob("*"):
            (kit / "shutdown.fl").touch() if (kit / "daemon_pid.fl").is_file() else None
        deadline = time.monotonic() + _STOP_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.5)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def remove(self) -> None:
        """Removes the kits, the jobs and all that the server kept; data and downloaded runs stay."""
        for attempt in range(10):  # a process that has just ended may still write its last line
            shutil.rmtree(self.flare, ignore_errors=attempt < 9)
            if not self.flare.exists():
                break
            time.sleep(0.5)
        for name in (_NOTE, "project.yml"):
            (self.folder / name).unlink(missing_ok=True)

    def processes(self) -> list[psutil.Process]:
        """The processes of this POC that are alive: those whose command line names its workspace."""
        inside, found = str(self.flare) + os.sep, []
        for process in psutil.process_iter(["cmdline", "status"]):
            named = any(inside in part + os.sep for part in process.info["cmdline"] or [])
            if named and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def _command(self, verb: str) -> str:
        return shlex.join(["fedsm", "poc", verb, "--dir", str(self.folder)])

    def _nvflare(self, verb: str, *options: str) -> None:
        """One call of `nvflare poc`.

        Raises:
            UserError: it failed.
        """
        here = {key: os.environ.get(key, value) for key, value in _SERVER.items()}
        if said := run_nvflare("poc", verb, *options, NVFLARE_POC_WORKSPACE=str(self.flare), **here):
            raise UserError(f"`nvflare poc {verb}` failed: {said}")


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("localhost", port))
        except OSError:
            return False
    return True


def _project(sites: list[str], port: int) -> dict:
    """FLARE's project file: our participants, FLARE's own builders."""
    import nvflare.lighter

    example = Path(nvflare.lighter.__file__).parent / "dummy_project.yml"
    server = {"name": SERVER, "type": "server", "org": ORG, "fed_learn_port": port}
    users = [{"name": ADMIN, "type": "admin", "org": ORG, "role": "project_admin"}]
    users.append({"name": LEAD, "type": "admin", "org": ORG, "role": "lead"})
    clients = [{"name": site, "type": "client", "org": ORG} for site in sites]
    return yaml.safe_load(example.read_text()) | {"name": PROJECT, "participants": [server, *clients, *users]}
