"""Runs a job in FLARE's simulator and shows a person one bar instead of FLARE's log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from tqdm import tqdm

from app_fedsm.runs.progress import WITHOUT_ROUNDS, Tail, show, tick
from app_fedsm.runs.run_folder import EARLIER, LOG, PROGRESS, RESULTS, RUN, collect, lock_folder, server_folder
from app_fedsm.runs.simulator_process import MODULE, SimulatorProcess, end_processes
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
    root, out = root.resolve(), out.resolve()
    cache = (cache or out / "cache").resolve()
    asked = {"data": str(root), "settings": settings.to_dict(), "threads": threads, "cache": str(cache)}
    write_json(out / RUN, asked | tracking.note())
    name = f"{settings.method}_{settings.task.name}"
    workspace, log, results = out / "workspace", out / LOG, out / RESULTS
    if results.exists():
        os.replace(results, out / EARLIER)  # so that they are not taken for the new results
    command = [str(out / "job" / name), "-c", ",".join(sites), "-t", str(threads), "-l", "full"]
    for attempt in range(1 + RESTARTS):
        with plain_path(workspace) as path, _started([*command, "-w", str(path)], out) as simulator:
            # What follows is done while the simulator loads its libraries.
            if attempt == 0:
                _fill_cache(settings, root, sites, cache)
                print(f"{len(sites)} sites, {settings.rounds} rounds; FLARE's log: {log}", file=sys.stderr)
            _export(name, settings, str(out / FOLDER) if resume else "", tracking, out / "job")
            # Threads by the number of sites, not of those that run at once: sums in torch depend on the threads.
            prepare_workspace(workspace, root, len(sites), out / "site_state", cache)
            adapt(out / "job" / name, workspace)
            simulator.begin()
            failure = _watch(simulator, server_folder(out) / PROGRESS, settings.rounds, log)
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


def _export(name: str, settings: JobSettings, resume_from: str, tracking: Tracking, folder: Path) -> None:
    from app_fedsm.recipes import FedSMRecipe  # here: importing FLARE's recipes takes seconds and reads sys.argv

    FedSMRecipe(name, settings=settings, resume_from=resume_from, track=tracking).export(str(folder))


@contextlib.contextmanager
def _started(arguments: list[str], out: Path) -> Iterator[SimulatorProcess]:
    """A simulator that has not begun yet. At the end of the block it is stopped, and what the server wrote is saved."""
    simulator: SimulatorProcess | None = None
    try:
        with stop_deferred():
            simulator = SimulatorProcess(arguments, out / LOG)
        yield simulator
    finally:
        with undisturbed():
            if simulator:
                simulator.stop()
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


def _watch(simulator: SimulatorProcess, progress: Path, rounds: int, log: Path) -> str | None:
    """Follows the server's progress until the process ends or cannot go on; returns why it failed, if it did."""
    events, lines = Tail(progress), Tail(log, simulator.log_start)
    failure, finished = None, False
    with tqdm(total=rounds, unit="round", desc="starting FLARE", bar_format=WITHOUT_ROUNDS) as bar:
        while True:
            running = simulator.look()
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
        flares = any(word == MODULE or word.startswith("nvflare.") for word in words)
        if flares and any(_leads_to(word, workspace) for word in words):
            with contextlib.suppress(psutil.NoSuchProcess):
                orphans |= {p.pid: p for p in [process, *process.children(recursive=True)]}
    end_processes(list(orphans.values()))


def _leads_to(word: str, workspace: Path) -> bool:
    """Whether a word of a command line is the workspace, or the link of `plain_path` to it."""
    return word == str(workspace) or (Path(word).is_absolute() and os.path.realpath(word) == str(workspace))
