"""Runs a job in FLARE's simulator and shows a person one bar instead of FLARE's log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from tqdm import tqdm

from app_fedsm.workspace import prepare_workspace
from fedsm.client.site_settings import CACHE_BUDGET
from fedsm.data.cache import SiteCache
from fedsm.data.check import check_with_bar
from fedsm.data.dataset import load_site
from fedsm.data.findings import SiteReport, refusal
from fedsm.data.site_folder import list_sites
from fedsm.errors import UserError
from fedsm.nets import try_networks
from fedsm.server.checkpoint import FOLDER, Checkpoints, write_json
from fedsm.server.record import AcceptedLog
from fedsm.settings import JobSettings
from fedsm.tracks import check_tracks

LOG = "flare.log"
RESTARTS = 3
# FLARE's simulator picks a worker's port, lets go of it and starts the worker: sometimes another connection takes the
# port in between, that site never runs, and the job would wait for it until the round's deadline. Seen twice in
# some thirty runs, in two of these forms.
_SITE_LOST = re.compile(
    rb"Address already in use|Communication error with client|run_client_thread error|Subprocess died for client"
)
_LOST = "the simulator lost one of its sites"
_RUN = "run.json"
_PRODUCTS = (
    "super_model",
    FOLDER,
    "tb_events",
    "progress.jsonl",
    AcceptedLog.NAME,
    "results.json",
)  # results last: they say all is there
_EARLIER = "results.earlier.json"
_OWN = (*_PRODUCTS, f"{FOLDER}.earlier", _EARLIER, _RUN, LOG, "job", "workspace", "site_state", "cache")


class SimulationFailed(Exception):
    """The run ended without results; the message says why and where to look."""


def known_sites(out: Path) -> list[str]:
    """The sites of a run's newest checkpoint, whether they are still there or not."""
    state = Checkpoints(out / FOLDER).load()
    return state["record"]["sites"] if state else []


def check_data(root: Path, settings: JobSettings, task: str, known: Sequence[str] = ()) -> list[SiteReport]:
    """Checks that the settings fit the sites, then every file, as `fedsm data check` does; returns a report a site.

    Args:
        root: the data root.
        settings: the job's settings.
        task: what `--task` was given, for the command that shows more.
        known: sites of the run that is resumed: they keep their place also where they are absent.

    Raises:
        UserError: settings that do not fit, or the first FAIL.
    """
    sites = list_sites(root)
    members = [*known, *(site for site in sites if site not in known)]
    check_tracks(settings, members)
    try_networks(settings, len(members))
    reports = check_with_bar(root, settings.task)
    if [report.site for report in reports] != sites:
        raise UserError(f"{root} is one site's folder or holds images beside the sites; --data is the folder above")
    if refused := refusal(reports, f"fedsm data check {shlex.quote(str(root))} --task {shlex.quote(task)}"):
        raise UserError(refused)
    return reports


def prepare_folder(out: Path, resume: bool, force: bool) -> None:
    """Makes the run's folder ready; never overwrites a run that nobody asked to be overwritten.

    Raises:
        UserError: it holds a run already, or with `resume` it holds none.
    """
    held = [name for name in _OWN if (out / name).exists()]
    if resume:
        if not (out / _RUN).is_file():
            raise UserError(f"{out} holds no run to resume; leave out --resume to start one")
        _collect(out)
        if not (out / FOLDER).is_dir():
            raise UserError(f"{out} holds no checkpoint yet; start again with --force")
        return
    if held and not force:
        raise UserError(f"{out} already holds a run ({held[0]}); choose another --out, or --resume it, or --force")
    for name in held:
        _remove(out / name)
    out.mkdir(parents=True, exist_ok=True)


def load_run(out: Path) -> dict:
    """What an earlier `fedsm run` wrote about itself: `data`, `settings`, `threads`, `cache` (None: an older one)."""
    try:
        run = json.loads((out / _RUN).read_text())
        return {key: run[key] for key in ("data", "settings", "threads")} | {"cache": run.get("cache")}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{out} holds no run to resume ({_RUN} cannot be read)") from e


def simulate(
    settings: JobSettings, root: Path, sites: list[str], out: Path, threads: int, resume: bool,
    cache: Path | None = None,
) -> dict:  # fmt: skip
    """Runs the job to its end.

    Args:
        settings: the job's settings.
        root: the data root.
        sites: names of the sites, as `check_data` reports them.
        out: the run's folder, made ready by `prepare_folder`.
        threads: sites that run at the same time.
        resume: go on from the folder's newest checkpoint.
        cache: where decoded images are kept; default: in the run's folder.

    Returns:
        the content of results.json.

    Raises:
        SimulationFailed: it ended without results.
        KeyboardInterrupt: after all processes were stopped and the checkpoints brought to safety.
    """
    from app_fedsm.recipe import FedSMRecipe  # here: importing FLARE's recipes takes seconds and reads sys.argv

    root, out = root.resolve(), out.resolve()
    cache = (cache or out / "cache").resolve()
    write_json(out / _RUN, {"data": str(root), "settings": settings.to_dict(), "threads": threads, "cache": str(cache)})
    name = f"{settings.method}_{settings.task.name}"
    workspace, log, results = out / "workspace", out / LOG, out / "results.json"
    if results.exists():
        os.replace(results, out / _EARLIER)  # of the run that is resumed; this one must not be taken for it
    _fill_cache(settings, root, sites, cache)
    print(f"{len(sites)} sites, {settings.rounds} rounds; FLARE's log: {log}", file=sys.stderr)
    for attempt in range(1 + RESTARTS):
        resume_from = str(out / FOLDER) if resume else ""
        FedSMRecipe(settings, name, resume_from).export(str(out / "job"))
        # Threads by the number of sites, not of those that run at once: sums in torch depend on the threads.
        prepare_workspace(workspace, root, len(sites), out / "site_state", cache)
        command = [sys.executable, "-m", "nvflare.cli", "simulator", str(out / "job" / name)]
        command += ["-w", str(workspace), "-c", ",".join(sites), "-t", str(threads), "-l", "full"]
        failure = _run_once(command, out, settings.rounds)
        if failure != _LOST or attempt == RESTARTS:
            break
        print("the simulator lost one of its sites; starting again from the last checkpoint", file=sys.stderr)
        resume = bool(list((out / FOLDER).glob("round_*.json")))
    if failure or not results.is_file():
        raise SimulationFailed(failure or f"the simulator ended without results; see {log}")
    return json.loads(results.read_text())


def _fill_cache(settings: JobSettings, root: Path, sites: list[str], cache: Path) -> None:
    """Decodes the images where a person sees the bar; in the simulator's processes it would go to the log."""
    for site in sites:
        load_site(root / site, site, settings, cache=SiteCache(cache / site, CACHE_BUDGET, os.cpu_count() or 1))


def _run_once(command: list[str], out: Path, rounds: int) -> str | None:
    """One start of the simulator; returns why it failed, as far as it said so."""
    log = out / LOG
    with log.open("ab") as stream:
        beginning = stream.tell()
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    family = _Family(process)
    try:
        return _watch(family, _server_folder(out / "workspace") / "progress.jsonl", rounds, log, beginning)
    finally:
        with undisturbed():
            family.stop()
            _collect(out)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Lets a request to end the process (`kill`, a closed terminal) stop a run as Ctrl-C does."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    names = (signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(name, interrupt) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, earlier, strict=True):
            signal.signal(name, handler)


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


def rounds_done(out: Path) -> int:
    """The round of a run's newest checkpoint, also while it runs; 0: there is none."""
    folders = (out / FOLDER, _server_folder(out / "workspace") / FOLDER)
    return max((int(p.stem.removeprefix("round_")) for f in folders for p in f.glob("round_*.json")), default=0)


def last_checkpoint(out: Path) -> str:
    """A sentence on the newest checkpoint of a run."""
    rounds = sorted((out / FOLDER).glob("round_*.json"))
    return f"last checkpoint: {rounds[-1]}" if rounds else "no checkpoint was written yet"


def _server_folder(workspace: Path) -> Path:
    return workspace / "server" / "simulate_job"


def _watch(family: _Family, progress: Path, rounds: int, log: Path, beginning: int) -> str | None:
    """Follows the server's progress until the process ends or cannot go on; returns why it failed, if it did."""
    events, lines = _Tail(progress), _Tail(log, beginning)
    failure, finished = None, False
    with tqdm(total=rounds, unit="round", desc="starting") as bar:
        while True:
            running = family.look()
            for line in events.read():
                event = json.loads(line)
                finished = finished or event["event"] == "finished"
                failure = _show(bar, event) or failure
            if any(map(_SITE_LOST.search, lines.read())) and running and not finished:
                return _LOST
            if not running:
                return failure
            time.sleep(0.2)


class _Tail:
    """The whole lines that were added to a file since the last look."""

    def __init__(self, path: Path, position: int = 0):
        self._path = path
        self._position = position

    def read(self) -> list[bytes]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as f:
            f.seek(self._position)
            data = f.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()


def _show(bar: tqdm, event: dict) -> str | None:
    if event["event"] == "failed":
        return event["reason"]
    if event["event"] in ("refused", "warned"):
        bar.write(f"round {event['round']}: site {event['site']} {event['event']}: {event['reason']}", sys.stderr)
        return None
    if event["event"] == "started":
        bar.update(event["round"])
        bar.set_description("training")
    elif event["event"] == "round":
        bar.update(event["round"] - bar.n)
        score = {f"dice {k}" if k != "selector" else "selector": f"{v:.3f}" for k, v in event["score"].items()}
        if event["missing"]:
            score["missing"] = ",".join(event["missing"])
        bar.set_postfix(score)
    else:
        bar.set_description(event["event"])
    return None


class _Family:
    """The simulator and all that it started, remembered while it lives: orphans could not be found later."""

    def __init__(self, process: subprocess.Popen):
        self._process = process
        self._members: dict[int, psutil.Process] = {}

    def look(self) -> bool:
        """Takes note of new members; False when the simulator has ended."""
        try:
            parent = psutil.Process(self._process.pid)
            self._members |= {p.pid: p for p in [parent, *parent.children(recursive=True)]}
        except psutil.NoSuchProcess:
            pass
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends them all. The simulator's workers lead sessions of their own: a process group would miss them."""
        self.look()
        alive = [p for p in self._members.values() if p.is_running()]
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for member in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(member)
            _, alive = psutil.wait_procs(alive, timeout=5)
        self._process.wait()


def _collect(out: Path) -> None:
    """Moves what the server wrote from FLARE's workspace, which its next start wipes, to the run's folder."""
    source = _server_folder(out / "workspace")
    for name in _PRODUCTS:
        if not (source / name).exists():
            continue
        target = out / name
        if target.is_dir() and name == "tb_events":
            shutil.copytree(source / name, target, dirs_exist_ok=True)  # a resumed run's curves join the earlier ones
            shutil.rmtree(source / name)
            continue
        if name == FOLDER and not list((source / name).glob("round_*.json")):
            continue  # killed before its first checkpoint: the earlier ones are all there is
        earlier = target.with_name(f"{name}.earlier")
        if target.exists():
            _remove(earlier)  # of a move that was killed: `target` came after it
            os.replace(target, earlier)
        shutil.move(source / name, target)
        _remove(earlier)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
