"""The signed record of a run: what was trained by whom, and the SHA-256 of every file that it left.

    super_model/record.json   {record, signature, public_key, certificate, voucher}

It lies in the super model's folder, so that a super model that is copied takes it along; `fedsm.core.signing` says who
signs. Signed is the canonical JSON of `record`: sorted keys, no blanks, ASCII.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedsm.core.described import Described, Name
from fedsm.core.errors import UserError
from fedsm.core.files import write_json
from fedsm.core.plain_json import read_json
from fedsm.core.signing import Signer, Voucher, decode, encode, signature_problem
from fedsm.core.text import one_line

RECORD = "record.json"
FORMAT = "fedsm-record/1"
SUPER_MODEL, CHECKPOINTS, RESULTS, ACCEPTED = "super_model", "checkpoints", "results.json", "accepted.jsonl"
COVERED = (SUPER_MODEL, RESULTS, CHECKPOINTS, ACCEPTED)  # of a run's folder
_SIGNED = b"fedsm record\n"  # so that the signature can stand for nothing else
_SHA256 = r"^[0-9a-f]{64}$"


class FileEntry(Described):
    """A file as it was when the record was made."""

    sha256: str = Field(pattern=_SHA256, description="SHA-256 of its content.")
    bytes: int = Field(ge=0, description="Its size.")


class SubmitterEntry(Described):
    """Who submitted the job, as FLARE authenticated the person."""

    name: str = Field(description="The user.")
    org: str = Field(description="The organisation.")
    role: str = Field(description="The role in the project.")


class Record(Described):
    """What is signed."""

    format: Literal["fedsm-record/1"] = Field(description="The format.")
    made: str = Field(description="When, in UTC.")
    made_by: Literal["server", "simulator"] = Field(
        description="`server`: of a federation. `simulator`: on one machine, by whoever ran it."
    )
    run_id: str | None = Field(description="Names the run; null of a centralized one.")
    job_id: str | None = Field(description="The job on the server; null in the simulator.")
    study: str | None = Field(description="The job's study; null in the simulator.")
    submitter: SubmitterEntry | None = Field(description="Who submitted the job; null in the simulator.")
    task: str = Field(description="The task.")
    method: str = Field(description="The method.")
    rounds: int = Field(description="Rounds in all.")
    sites: list[str] = Field(description="The sites in index order.")
    forgotten: list[str] = Field(description="Sites that had left for good.")
    versions: dict[Name, str] = Field(description="Of what made the weights.")
    settings: dict[str, Any] = Field(description="The job's [settings](settings.md).")
    files: dict[Name, FileEntry] = Field(
        description="Every file of `super_model/` and `checkpoints/`, `results.json` and `accepted.jsonl`, by its path"
        " in the run's folder."
    )


class SignedFile(Described):
    """record.json."""

    record: Record = Field(description="What is signed.")
    signature: str = Field(description="Ed25519, base64.")
    public_key: str = Field(description="The key that signed it, base64.")
    certificate: str | None = Field(default=None, description="PEM of the server's certificate; null in the simulator.")
    voucher: str | None = Field(
        default=None, description="Signature of the public key by the certificate's own key, base64."
    )


@dataclass(frozen=True)
class SignedRecord:
    """A record whose signature is right. Whose key it is has not been checked: see `fedsm.core.trust`."""

    record: Record
    public: bytes
    voucher: Voucher | None

    @property
    def made(self) -> datetime.datetime:
        """When it was signed, as it says."""
        return datetime.datetime.fromisoformat(self.record.made)


def write_record(places: dict[str, Path], about: dict[str, Any], signer: Signer) -> None:
    """Signs a run that is complete; writes `record.json` into its super model's folder.

    Args:
        places: each of `COVERED` -> where it is now; those that are not there are left out.
        about: the fields of `Record` that say what was run.
        signer: who signs.

    Raises:
        OSError: a file cannot be read, or the record not written.
        ValidationError: `about` is incomplete.
    """
    files = [name for name in list_files(places) if name != f"{SUPER_MODEL}/{RECORD}"]
    paths = {name: path_of(places, name) for name in files}
    digests = digests_of(list(paths.values()))
    entries = {
        name: {"sha256": digest, "bytes": path.stat().st_size}
        for (name, path), digest in zip(paths.items(), digests, strict=True)
    }
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()
    record = Record.model_validate({"format": FORMAT, "made": now, "files": entries} | about).plain()
    signed = {
        "record": record,
        "signature": encode(signer.key.sign(_canonical(record))),
        "public_key": encode(signer.public),
        "certificate": signer.voucher and signer.voucher.certificate,
        "voucher": signer.voucher and encode(signer.voucher.signature),
    }
    write_json(places[SUPER_MODEL] / RECORD, signed)


def read_record(file: Path) -> SignedRecord | None:
    """Reads a record and checks its signature; None: there is none.

    Raises:
        UserError: it cannot be read, or was changed after it was signed.
    """
    if not os.path.lexists(file):
        return None
    try:
        content = read_json(file)
        signed = SignedFile.model_validate(content)
        public, signature = decode(signed.public_key), decode(signed.signature)
        voucher = None
        if signed.certificate is not None and signed.voucher is not None:
            voucher = Voucher(signed.certificate, decode(signed.voucher))
        found = SignedRecord(signed.record, public, voucher)
        if found.made.tzinfo is None:
            raise ValueError("its time has no zone")
        if reason := signature_problem(public, signature, _canonical(content["record"])):
            raise UserError(reason, file=file, remedy="get the run again from whom you trust")
    except (OSError, ValueError, ValidationError) as e:
        raise UserError(f"cannot be read ({one_line(e, 120)})", file=file, remedy="copy it again") from e
    return found


def list_files(places: dict[str, Path]) -> list[str]:
    """The covered files that are there, and links, by their paths in the run's folder."""
    found = []
    for name, place in places.items():
        if place.is_dir() and not place.is_symlink():
            inside = [Path(root, entry) for root, folders, files in os.walk(place) for entry in (*folders, *files)]
            paths = [path for path in inside if path.is_symlink() or not path.is_dir()]
            found += [f"{name}/{path.relative_to(place).as_posix()}" for path in paths]
        elif os.path.lexists(place):
            found.append(name)
    return sorted(found)


def path_of(places: dict[str, Path], name: str) -> Path:
    """Where a file of `list_files` is."""
    top, _, rest = name.partition("/")
    return places[top] / rest if rest else places[top]


def places_in(run: Path) -> dict[str, Path]:
    """Where the covered files are in a run's folder."""
    return {name: run / name for name in COVERED}


def digests_of(paths: list[Path]) -> list[str]:
    """SHA-256 of files; all processors share the work.

    Raises:
        OSError: one cannot be read.
    """
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        return list(pool.map(digest_of, paths))


def digest_of(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _canonical(record: dict) -> bytes:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _SIGNED + text.encode("ascii")
