"""Holds a run, or a super model alone, against its signed record. Works without a network and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedsm.core.errors import UserError
from fedsm.core.plain_json import read_json
from fedsm.core.text import one_line
from fedsm.core.trust import Trust
from fedsm.super_model.record import (
    CHECKPOINTS,
    RECORD,
    RESULTS,
    SUPER_MODEL,
    SignedRecord,
    digest_of,
    digests_of,
    list_files,
    path_of,
    places_in,
    read_record,
)

MANIFEST = "manifest.json"
_EARLIER = "results.earlier.json"  # left by a run that went on after it had finished
_NO_RECORD = "there is none: an earlier version made this run, or the record was taken away"


@dataclass
class Verdict:
    """What was found.

    Attributes:
        record: the record; None: there is none, or none that can be read.
        problems: file -> what is wrong with it.
        removed: folders that the record knows and that are gone as a whole: `fedsm clean` removes them.
        notes: what else a reader should know.
        intact: how many files are as they were signed.
    """

    record: SignedRecord | None = None
    problems: list[tuple[str, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    intact: int = 0


def verify(folder: Path, trust: Trust) -> Verdict:
    """Checks the signature, who signed, and every file.

    Args:
        folder: of a run, or of a super model.
        trust: whom the reader trusts.

    Raises:
        UserError: the folder is neither a run's nor a super model's.
    """
    places = _places(folder)
    prefix = f"{SUPER_MODEL}/" if (folder / SUPER_MODEL).is_dir() else ""
    verdict = Verdict()
    try:
        verdict.record = read_record(places[SUPER_MODEL] / RECORD)
    except UserError as e:
        verdict.problems.append((prefix + RECORD, e.message))
        return verdict
    if verdict.record is None:
        verdict.problems.append((prefix + RECORD, _NO_RECORD))
        return verdict
    signed = verdict.record
    if reason := trust.problem(signed.public, signed.voucher, signed.made):
        verdict.problems.append((prefix + RECORD, reason))
    _compare(places, signed, verdict)
    if not prefix:
        verdict.problems = [(file.removeprefix(f"{SUPER_MODEL}/"), what) for file, what in verdict.problems]
    verdict.notes += _notes(folder, places, signed)
    return verdict


def signed_digests(folder: Path, trust: Trust) -> dict[str, str]:
    """The signed SHA-256 of a super model's files, by name: for whoever loads them and computes theirs anyway.

    The manifest, which names the others, is checked here.

    Raises:
        UserError: no record, not of whom is trusted, or the manifest is not the signed one.
    """
    file, remedy = folder / RECORD, "get the super model again from whom you trust"
    signed = read_record(file)
    if signed is None:
        raise UserError(_NO_RECORD, file=file, remedy="load it without `verify`, if you know where it is from")
    if reason := trust.problem(signed.public, signed.voucher, signed.made):
        raise UserError(reason, file=file, remedy=remedy)
    inside = f"{SUPER_MODEL}/"
    digests = {n.removeprefix(inside): e.sha256 for n, e in signed.record.files.items() if n.startswith(inside)}
    try:
        same = digest_of(folder / MANIFEST) == digests.get(MANIFEST)
    except OSError as e:
        raise UserError(f"cannot be read: {e.strerror}", file=folder / MANIFEST, remedy=remedy) from e
    if not same:
        raise UserError("is not the one that was signed", file=folder / MANIFEST, remedy=remedy)
    return digests


def _places(folder: Path) -> dict[str, Path]:
    if (folder / SUPER_MODEL).is_dir():
        return places_in(folder)
    if (folder / MANIFEST).is_file():
        return {SUPER_MODEL: folder}
    raise UserError(f"{folder} holds neither a super model nor a run that has finished")


def _compare(places: dict[str, Path], signed: SignedRecord, verdict: Verdict) -> None:
    """Every file of the record with those that are there."""
    known = {str(name): e.sha256 for name, e in signed.record.files.items() if name.partition("/")[0] in places}
    there = [name for name in list_files(places) if name != f"{SUPER_MODEL}/{RECORD}"]
    links = [name for name in there if path_of(places, name).is_symlink()]
    odd = [name for name in there if name not in links and not path_of(places, name).is_file()]  # a pipe never ends
    if not any(name.startswith(f"{CHECKPOINTS}/") for name in there) and CHECKPOINTS in places:
        kept = [name for name in known if name.startswith(f"{CHECKPOINTS}/")]
        known = {name: sha256 for name, sha256 in known.items() if name not in kept}
        if kept:
            verdict.removed.append(f"{CHECKPOINTS}/ ({len(kept)} files)")
    problems = dict.fromkeys(links, "is a link") | dict.fromkeys(odd, "is no file")
    problems |= {name: "is not in the record: it was added later" for name in there if name not in known}
    problems |= {name: "is missing" for name in known if name not in there}
    compared = [name for name in there if name in known and name not in problems]
    try:
        digests = digests_of([path_of(places, name) for name in compared])
    except OSError as e:
        raise UserError(f"cannot be read: {e.strerror}", file=e.filename) from e
    for name, digest in zip(compared, digests, strict=True):
        if digest != known[name]:
            problems[name] = "was changed: its SHA-256 is another one"
    verdict.intact = len(compared) - sum(name in problems for name in compared)
    verdict.problems += sorted(problems.items())


def _notes(folder: Path, places: dict[str, Path], signed: SignedRecord) -> list[str]:
    """Changes that our own commands make to a run after its record was signed."""
    notes = []
    if (folder / _EARLIER).is_file() and not (folder / RESULTS).is_file():
        notes.append("the run goes on, or was stopped, after this record was made; a new one is signed when it ends")
    try:
        forgotten = read_json(places[SUPER_MODEL] / MANIFEST)["forgotten"]
        new = [str(site) for site in forgotten if site not in signed.record.forgotten]
    except (OSError, ValueError, KeyError, TypeError):
        new = []
    if new:
        notes.append(
            f"the manifest says that {one_line(', '.join(new))} was forgotten after the record was made: `fedsm forget`"
            " writes super model and checkpoint again, and no server has signed them"
        )
    return notes
