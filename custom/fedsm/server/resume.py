"""Going on from a checkpoint, also where the sites are not the same any more.

known and here       goes on
known, not here      absent: keeps its personal model, its part of the selector and its index
here, not known      new: gets the global model as its personal one and the next index
here, but forgotten  is not asked: it has left for good
"""

from __future__ import annotations

from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.model_store import IN_MEMORY, ModelStore
from fedsm.core.natural_order import natural_key
from fedsm.core.plain_json import reading
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.server.checkpoint import Checkpoints, named
from fedsm.server.record import RunRecord
from fedsm.tracks import complete_tracks, server_tracks
from fedsm.tracks.base import Membership, ServerTrack

# Settings that a resumed run may not change: otherwise its weights would belong to neither run.
_FIXED = (
    "task", "tracks", "local_epochs", "batch_size", "size", "lr", "selector_lr", "seed", "loss", "schedule",
    "warmup_rounds", "ema", "site_weights", "update_privacy", "wire",
)  # fmt: skip


def resume(
    job: JobSettings, source: Path, own: Checkpoints, here: list[str], number: int | None = None,
    store: ModelStore = IN_MEMORY,
) -> tuple[dict[str, ServerTrack], RunRecord, int]:  # fmt: skip
    """Takes over a checkpoint of an earlier run.

    Args:
        job: the job's settings.
        source: the earlier run's `checkpoints` folder.
        own: where this run keeps its own.
        here: the sites that are clients of this job.
        number: the round to go on from; default: the newest.
        store: where the networks of single sites are kept.

    Returns:
        the tracks, the record and the last round that was done.

    Raises:
        UserError: there is none, it does not fit, or no site of it is here.
    """
    other = Checkpoints(source)
    state = other.load(number)
    if state is None:
        raise UserError(f"no checkpoint to resume from in {source}")
    with reading(f"the checkpoint in {source}", "resume from another run"):
        record = RunRecord(**state["record"], best=state["best"])
        state["settings"]["rounds"]
    if job.update_privacy and number is not None:
        raise UserError(
            "a run with update_privacy cannot go back: the rounds after that were released, and would not be counted",
            remedy="go on from the newest round, or start a new run",
        )
    if not set(record.sites) & set(here):
        raise UserError(
            f"the checkpoint in {source} is of the sites {', '.join(record.sites)}, but this job has {', '.join(here)}"
        )
    new = sorted((s for s in here if s not in record.sites and s not in record.forgotten), key=natural_key)
    record.admit(new)
    tracks = server_tracks(job, record.sites, store)
    _check(job, state, source)
    files = {stem: other.load_weights(name) for stem, name in state["files"].items()}
    try:
        members = [track for track in tracks.values() if isinstance(track, Membership)]
        changed = [model for track in members for model in track.join(files, new)] if new else []
        for track in tracks.values():
            track.load_files(files)
    except KeyError as e:
        raise UserError(f"the checkpoint in {source} is of another method: it lacks {e}") from e
    if not new:
        own.adopt(other, state["round"])
        return tracks, record, state["round"]
    # Written before the first round: with new sites this run's state differs from the copied checkpoint.
    for model in changed:
        record.best.pop(model, None)
    own.take(other, named({"files": {}, "best": record.best}))
    save(own, state["round"], tracks, record, job)
    return tracks, record, state["round"]


def save(
    checkpoints: Checkpoints, number: int, tracks: dict[str, ServerTrack], record: RunRecord, job: JobSettings
) -> None:
    """Writes the checkpoint of a round: everything that is needed to go on.

    Raises:
        UserError: it cannot be written, for example because the disk is full.
    """
    files: dict[str, Tensors] = {stem: t for track in tracks.values() for stem, t in track.files().items()}
    plain = record.to_dict()
    best = plain.pop("best")
    checkpoints.save(number, files, {"record": plain, "best": best, "settings": job.to_dict()})


def check_rounds_kept(job: JobSettings, before: int) -> None:
    """Refuses another number of rounds than the run was made for, where its last rounds are the selector's alone.

    Raises:
        UserError: with the number.
    """
    if before != job.rounds and any("rounds" in options for options in complete_tracks(job).values()):
        raise UserError(
            f"{job.method} trains its selector in the last rounds, so a resumed run keeps its rounds",
            remedy=f"leave {before} rounds",
        )


def _check(job: JobSettings, state: dict, source: Path) -> None:
    # With all settings and options: a job of an earlier version lacks later ones, which were at their default.
    now = job.to_dict() | {"tracks": complete_tracks(job)}
    then = {key: field.default for key, field in JobSettings.model_fields.items()} | state["settings"]
    then["tracks"] = complete_tracks(job.replace(tracks=state["settings"].get("tracks", {})))
    different = [k for k in _FIXED if then[k] != now[k]]
    if different:
        raise UserError(f"the checkpoint in {source} was made with another {different[0]!r} setting")
    check_rounds_kept(job, state["settings"]["rounds"])
    if state["round"] > job.rounds:
        raise UserError(
            f"{state['round']} rounds are done already, more than the {job.rounds} asked for",
            remedy=f"ask for {state['round']} or more",
        )
