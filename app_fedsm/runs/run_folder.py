"""A run's folder: its files, and how it is prepared, read and filled.

run.json                     what was asked for, written first
checkpoints/ progress.jsonl tb_events/ super_model/ results.json       as the server writes them; results last
metrics/ cross_site_val/ artifact_manifest.json                        the same, for FLARE's own tools
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.names import refuse_links
from fedsm.core.plain_json import parse_json, read_json, reading
from fedsm.core.private_files import close_to_others
from fedsm.server.checkpoint import FOLDER, Checkpoints
from fedsm.server.record import AcceptedLog

RUN = "run.json"
LOG = "flare.log"
RESULTS = "results.json"
PROGRESS = "progress.jsonl"
_WANDB = "wandb"  # it links to its log in the user's cache folder; the links are not collected
_CURVES = ("tb_events", _WANDB)  # those of a resumed run join the earlier ones
_PRODUCTS = (
    "super_model",
    FOLDER,
    *_CURVES,
    "mlflow.db",  # it holds all rounds, also those before a resume
    PROGRESS,
    AcceptedLog.NAME,
    "metrics",  # this and the next two: see `fedsm.flare.artefacts`, whose FLARE takes seconds to import
    "cross_site_val",
    "artifact_manifest.json",
    RESULTS,
)  # results last: they show that the run is complete
EARLIER = "results.earlier.json"
SLIM = "slim"  # in run.json: `fedsm clean` dropped what a resume needs
_LINKLESS = (
    ".lock", RUN, LOG, EARLIER, "job", "site_state", "download", *_PRODUCTS, *(f"{name}.earlier" for name in _PRODUCTS),
)  # fmt: skip
_OWN = (*_PRODUCTS, f"{FOLDER}.earlier", EARLIER, RUN, LOG, "job", "workspace", "site_state", "cache")


@contextlib.contextmanager
def lock_folder(folder: Path, what: str, patience: float = 0) -> Iterator[None]:
    """Locks a folder while this process lives, so that two processes cannot write into it.

    Args:
        folder: the folder, which is made.
        what: what the other process would be, for the message.
        patience: seconds to wait for the other one, which may be about to end.

    Raises:
        UserError: the other one is still at work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with os.fdopen(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"another {what} is at work in {folder}", remedy="wait for it, or choose another --out"
                    ) from e
            time.sleep(0.2)
        yield


def prepare_folder(out: Path, resume: bool, force: bool, from_round: int | None = None) -> None:
    """Prepares the run's folder; overwrites a run in it only with `force`.

    Args:
        out: the run's folder.
        resume: whether the run in it goes on.
        force: whether a run in it may be replaced.
        from_round: with `resume`, the round to go back to; later checkpoints are dropped.

    Raises:
        UserError: it holds a run already, or with `resume` it holds none, or none of that round.
    """
    held = [name for name in _OWN if (out / name).exists()]
    if resume:
        if not (out / RUN).is_file():
            raise UserError(f"{out} holds no run to resume", remedy="leave out --resume to start one")
        check_links(out)
        collect(server_folder(out), out)
        if not (out / FOLDER).is_dir():
            raise UserError(f"{out} holds no checkpoint yet", remedy="start it again with `fedsm run` and --force")
        for name in held:
            close_to_others(out / name)  # an earlier version left them open
        if from_round is not None:
            Checkpoints(out / FOLDER).rewind(from_round)
        return
    if held and not force:
        begun = newest_checkpoint(out) or rounds_done(out)
        go_on = f" go on with `fedsm resume {shlex.quote(str(out))}`," if begun else ""
        raise UserError(f"{out} already holds a run ({held[0]})", remedy=f"choose another --out,{go_on} or --force")
    for name in held:
        _remove(out / name)
    out.mkdir(parents=True, exist_ok=True)


def check_links(out: Path) -> None:
    """Refuses a run's folder with symbolic links, which may come from others: we would write where they lead.

    Raises:
        UserError: naming the link.
    """
    refuse_links(out, _LINKLESS)
    place = server_folder(out)
    for folder in (out / "workspace", place.parent, place):
        if folder.is_symlink():
            refuse_links(folder.parent, [folder.name])
    refuse_links(place, [name for name in _PRODUCTS if name != _WANDB])
    if (place / _WANDB).is_symlink():
        refuse_links(place, [_WANDB])


def load_run(out: Path) -> dict:
    """What an earlier `fedsm run` wrote about itself: `data`, `settings`, `threads`, `cache`, and where the curves go.

    Raises:
        UserError: there is none, or it cannot go on here.
    """
    try:
        run = read_json(out / RUN)
        loaded = {key: run[key] for key in ("data", "settings", "threads", "cache")} if "job_id" not in run else {}
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{out} holds no run to resume ({RUN} cannot be read)") from e
    if not loaded:
        raise UserError(
            f"{out} is the run of a federation", remedy=f"`fedsm resume {shlex.quote(str(out))}` goes on with it"
        )
    if run.get(SLIM):
        raise UserError(
            f"{out} cannot go on: its checkpoints were dropped by --slim or `fedsm clean`",
            remedy="its results and its super model can be used; for more rounds start a new run with another --out",
        )
    return run


def find_super_model(path: Path) -> Path:
    """The super model's folder, given itself or the folder of the run that made it.

    Raises:
        UserError: a run that has made none yet.
    """
    if (path / "super_model").is_dir():
        return path / "super_model"
    if (path / RUN).is_file():
        raise UserError(f"{path} holds no super model yet: the run has not finished")
    return path


def is_federation(out: Path) -> bool:
    """Whether a run's folder is of a job that was submitted to a server, not of the simulator.

    Raises:
        UserError: it holds no run.
    """
    try:
        return "job_id" in read_json(out / RUN)
    except (OSError, ValueError, TypeError) as e:
        raise UserError(f"{out} holds no run ({RUN} cannot be read)") from e


def rounds_done(out: Path) -> int:
    """The round of a run's newest checkpoint, also while it runs; 0: there is none."""
    folders = (out / FOLDER, server_folder(out) / FOLDER)
    return max((int(p.stem.removeprefix("round_")) for f in folders for p in f.glob("round_*.json")), default=0)


def check_rounds(out: Path, done: int, before: int, rounds: int, from_round: int | None) -> None:
    """Refuses fewer rounds than are done. The server would, too, but only after the finished run's files were moved.

    Args:
        out: the run's folder.
        done: the rounds that are done.
        before: the rounds that the run was made for.
        rounds: those that are asked for now.
        from_round: the round to go back to.

    Raises:
        UserError: with the least number.
    """
    done = done if from_round is None else from_round
    if rounds < done:
        what = f"{done} rounds are done already" if from_round is None else f"--from-round is {done}"
        asked = f"--rounds {rounds}" if rounds != before else f"the run's {rounds} rounds"
        raise UserError(f"{out}: {what}, more than {asked}", remedy=f"give --rounds {done} or more")


def events_of(out: Path) -> list[dict]:
    """The events of a run so far (`progress.jsonl`), also while it runs in the simulator."""
    files = [path for path in (out / PROGRESS, server_folder(out) / PROGRESS) if path.is_file()]
    try:
        newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
        lines = newest.read_text().splitlines() if newest else []
    except FileNotFoundError:  # `collect` moved it just now
        return []
    with reading(newest, "the run itself may be sound: `fedsm report` and `fedsm resume` do not need it"):
        return [parse_json(line) for line in lines if line.endswith("}")]  # a killed run may leave half a line


def newest_checkpoint(out: Path) -> Path | None:
    """The newest checkpoint of a run; None: there is none."""
    return max((out / FOLDER).glob("round_*.json"), default=None)


def server_folder(out: Path) -> Path:
    """Where the server of a run in the simulator writes."""
    return out / "workspace" / "server" / "simulate_job"


def collect(source: Path, out: Path) -> None:
    """Moves what the server wrote to the run's folder.

    Args:
        source: the job's folder in the simulator's workspace, which its next start wipes, or in a download.
        out: the run's folder.
    """
    for name in _PRODUCTS:
        if not (source / name).exists():
            continue
        target = out / name
        if name in _CURVES:
            shutil.copytree(source / name, target, dirs_exist_ok=True, ignore=_links)
            shutil.rmtree(source / name)
            continue
        if name == FOLDER and not list((source / name).glob("round_*.json")):
            continue  # killed before its first checkpoint: only the earlier ones exist
        earlier = target.with_name(f"{name}.earlier")
        if target.exists():
            _remove(earlier)  # of a move that was killed: `target` came after it
            os.replace(target, earlier)
        shutil.move(source / name, target)
        _remove(earlier)


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_symlink()]


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
