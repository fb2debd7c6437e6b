"""Runs a job in FLARE's simulator and shows a person one bar instead of FLARE's log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from tqdm import tqdm

from app_fedsm.runs.progress import WITHOUT_ROUNDS, Tail, show, tick
from app_fedsm.runs.run_folder import EARLIER, LOG, PROGRESS, RESULTS, RUN, collect, lock_folder, server_folder
from app_fedsm.runs.workspace import plain_path, prepare_workspace
from app_fedsm.tracking import DEFAULT_TRACKING, Tracking
from fedsm.client.site_file import CACHE_BUDGET
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.settings import JobSettings
from fedsm.data.cache import SiteCache
from fedsm.data.check import check_with_bar
from fedsm.data.dataset import load_site
from fedsm.data.findings import SiteReport, first_failure
from fedsm.data.site_folder import list_sites
from fedsm.nets import try_networks
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.tracks import check_tracks

RESTARTS = 3
# FLARE's simulator picks a worker's port, releases it and starts the worker. Sometimes another connection takes the
# port in between: that site never runs, and the job would wait for it until the round's deadline. Seen twice in some
# thirty runs, in two of these forms.
_SITE_LOST = re.compile(
    rb"Address already in use|Communication error with client|run_client_thread error|Subprocess died for client"
)
_LOST = "the simulator lost one of its sites"


class SimulationFailed(Exception):
    """The run ended without results; the message says why and where to look."""


def known_sites(out: Path) -> list[str]:
    """The sites of a run's newest checkpoint, whether they are still there or not."""
    state = Checkpoints(out / FOLDER).load()
    return state["record"]["sites"] if state else []


def check_data(root: Path, settings: JobSettings, task: str, known: Sequence[str] = ()) -> list[SiteReport]:
    """Checks that the settings fit the sites, then every file, as `fedsm data check` does; returns a report per site.

    Args:
        root: the data root.
        settings: the job's settings.
        task: what `--task` was given, for the command that shows more.
        known: sites of the run that is resumed: they stay in the run also where they are absent.

    Raises:
        UserError: settings that do not fit, or the first FAIL.
    """
    sites = list_sites(root)
    members = [*known, *(site for site in sites if site not in known)]
    check_tracks(settings, members)
    try_networks(settings, len(members))
    reports = check_with_bar(root, settings.task)
    if [report.site for report in reports] != sites:
        raise UserError(
            f"{root} is one site's folder or holds images beside the sites", remedy="--data is the folder above"
        )
    if failure := first_failure(reports, f"fedsm data check {shlex.quote(str(root))} --task {shlex.quote(task)}"):
        raise failure
    return reports


def simulate(
    settings: JobSettings, root: Path, sites: list[str], out: Path, threads: int, resume: bool,
    cache: Path | None = None, tracking: Tracking = DEFAULT_TRACKING,
    adapt: Callable[[Path, Path], None] = lambda job, workspace: None,
) -> dict:  # fmt: skip
    """Runs the job to its end.

    Args:
        settings: the job's settings.
        root: the data root.
        sites: names of the sites, as `check_data` reports them.
        out: the run's folder, held by this process (`lock_run`) and made ready by `prepare_folder`.
        threads: sites that run at the same time.
        resume: go on from the folder's newest checkpoint.
        cache: where decoded images are kept; default: in the run's folder.
        tracking: where the curves go.
        adapt: changes the job's folder and the workspace before each start; for the chaos run.

    Returns:
        the content of results.json.

    Raises:
        SimulationFailed: it ended without results.
        KeyboardInterrupt: after all processes were stopped and the checkpoints were saved.
    """
    from app_fedsm.recipes import FedSMRecipe  # here: importing FLARE's recipes takes seconds and reads sys.argv

    root, out = root.resolve(), out.resolve()
    cache = (cache or out / "cache").resolve()
    asked = {"data": str(root), "settings": settings.to_dict(), "threads": threads, "cache": str(cache)}
    write_json(out / RUN, asked | tracking.note())
    name = f"{settings.method}_{settings.task.name}"
    workspace, log, results = out / "workspace", out / LOG, out / RESULTS
    if results.exists():
        os.replace(results, out / EARLIER)  # so that they are not taken for the new results
    _fill_cache(settings, root, sites, cache)
    print(f"{len(sites)} sites, {settings.rounds} rounds; FLARE's log: {log}", file=sys.stderr)
    for attempt in range(1 + RESTARTS):
        resume_from = str(out / FOLDER) if resume else ""
        FedSMRecipe(name, settings=settings, resume_from=resume_from, track=tracking).export(str(out / "job"))
        # Threads by the number of sites, not of those that run at once: sums in torch depend on the threads.
        prepare_workspace(workspace, root, len(sites), out / "site_state", cache)
        adapt(out / "job" / name, workspace)
        command = [sys.executable, "-m", "nvflare.cli", "simulator", str(out / "job" / name)]
        command += ["-c", ",".join(sites), "-t", str(threads), "-l", "full"]
        with plain_path(workspace) as path:
            failure = _run_once([*command, "-w", str(path)], out, settings.rounds)
        if failure != _LOST or attempt == RESTARTS:
            break
        print("the simulator lost one of its sites; starting again from the last checkpoint", file=sys.stderr)
        resume = bool(list((out / FOLDER).glob("round_*.json")))
    if failure or not results.is_file():
        raise SimulationFailed(failure or f"the simulator ended without results; see {log}")
    return json.loads(results.read_text())


def _fill_cache(settings: JobSettings, root: Path, sites: list[str], cache: Path) -> None:
    """Decodes the images before the simulator starts, so that a person sees the bar and it does not go to the log."""
    for site in sites:
        load_site(root / site, site, settings, cache=SiteCache(cache / site, CACHE_BUDGET, os.cpu_count() or 1))


def _run_once(command: list[str], out: Path, rounds: int) -> str | None:
    """Starts the simulator once; returns why it failed, as far as it reported a reason."""
    log = out / LOG
    processes: _ProcessTree | None = None
    try:
        with stop_deferred(), log.open("ab") as stream:
            beginning = stream.tell()
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
            processes = _ProcessTree(process)
        return _watch(processes, server_folder(out) / PROGRESS, rounds, log, beginning)
    finally:
        with undisturbed():
            if processes:
                processes.stop()
            collect(server_folder(out), out)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Lets a request to end the process (`kill`, a closed terminal) stop a run as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = (signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(name, interrupt) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, earlier, strict=True):
            signal.signal(name, handler)


@contextlib.contextmanager
def stop_deferred() -> Iterator[None]:
    """Delays Ctrl-C and the like to the end of the block, when a process that was just started is known.

    With handlers, not a mask: the started process would inherit masked or ignored signals.
    """
    came: list[int] = []
    names = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    earlier = [signal.signal(name, lambda number, frame: came.append(number)) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, earlier, strict=True):
            signal.signal(name, handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not cut short the stopping of processes and the saving of checkpoints."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(name, signal.SIG_IGN) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, earlier, strict=True):
            signal.signal(name, handler)


def _watch(processes: _ProcessTree, progress: Path, rounds: int, log: Path, beginning: int) -> str | None:
    """Follows the server's progress until the process ends or cannot go on; returns why it failed, if it did."""
    events, lines = Tail(progress), Tail(log, beginning)
    failure, finished = None, False
    with tqdm(total=rounds, unit="round", desc="starting FLARE", bar_format=WITHOUT_ROUNDS) as bar:
        while True:
            running = processes.look()
            for line in events.read():
                event = json.loads(line)
                finished = finished or event["event"] == "finished"
                failure = show(bar, event) or failure
            if any(map(_SITE_LOST.search, lines.read())) and running and not finished:
                return _LOST
            if not running:
                return failure
            tick(bar)
            time.sleep(0.2)


class _ProcessTree:
    """The simulator and all processes that it started, collected while it lives: orphans could not be found later."""

    def __init__(self, process: subprocess.Popen):
        self._process = process
        self._members: dict[int, psutil.Process] = {}

    def look(self) -> bool:
        """Adds new processes; False when the simulator has ended."""
        try:
            parent = psutil.Process(self._process.pid)
            self._members |= {p.pid: p for p in [parent, *parent.children(recursive=True)]}
        except psutil.NoSuchProcess:
            pass
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends them all. The simulator's workers lead sessions of their own: a process group would miss them."""
        self.look()
        _end(list(self._members.values()))
        self._process.wait()


def _end(processes: list[psutil.Process]) -> None:
    """Ends processes: asks, waits, kills."""
    alive = [p for p in processes if p.is_running()]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for member in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(member)
        _, alive = psutil.wait_procs(alive, timeout=5)


@contextlib.contextmanager
def lock_run(out: Path, patience: float = 0) -> Iterator[None]:
    """Locks a run's folder; see `lock_folder`.

    A simulator that still runs there has outlived its command (kill -9) and would go on writing: it is stopped.
    """
    with lock_folder(out, "run", patience):
        _stop_orphans(out.resolve() / "workspace")
        yield


def _stop_orphans(workspace: Path) -> None:
    orphans: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.startswith("nvflare.") for word in words) and any(_leads_to(word, workspace) for word in words):
            with contextlib.suppress(psutil.NoSuchProcess):
                orphans |= {p.pid: p for p in [process, *process.children(recursive=True)]}
    _end(list(orphans.values()))


def _leads_to(word: str, workspace: Path) -> bool:
    """Whether a word of a command line is the workspace, or the link of `plain_path` to it."""
    return word == str(workspace) or (Path(word).is_absolute() and os.path.realpath(word) == str(workspace))
