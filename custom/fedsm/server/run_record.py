"""Signs the record of a run that has ended; see `fedsm.super_model.record`."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from fedsm.core.settings import JobSettings
from fedsm.core.signing import Signer, owner_signer
from fedsm.core.trust import Trust
from fedsm.server.owner import Submitter
from fedsm.super_model.artefact import versions
from fedsm.super_model.record import ACCEPTED, CHECKPOINTS, RECORD, SUPER_MODEL, places_in, read_record, write_record
from fedsm.super_model.verify import verify


def sign_run(
    folder: Path, job: JobSettings, sites: list[str], signer: Signer, *, run_id: str | None = None,
    forgotten: list[str] | None = None, job_id: str | None = None, submitter: Submitter | None = None,
    checkpoints: Path | None = None,
) -> None:  # fmt: skip
    """Signs a run whose files are all written.

    Args:
        folder: the run's.
        job: the job's settings.
        sites: the sites in index order.
        signer: who signs.
        run_id: names the run.
        forgotten: sites that had left for good.
        job_id: the job on the server.
        submitter: who submitted it, as FLARE authenticated the person; None in the simulator.
        checkpoints: the folder in which a server keeps checkpoints and log; default: the run's.

    Raises:
        OSError: a file cannot be read or written.
    """
    kept = checkpoints or folder
    places = places_in(folder) | {name: kept / name for name in (CHECKPOINTS, ACCEPTED)}
    person = asdict(submitter) if submitter else {}
    study = person.pop("study", None)
    about = {
        "made_by": "server" if submitter else "simulator",
        "run_id": run_id,
        "job_id": job_id if submitter else None,
        "study": study,
        "submitter": person or None,
        "task": job.task.name,
        "method": job.method,
        "rounds": job.rounds,
        "sites": sites,
        "forgotten": forgotten or [],
        "versions": versions() | {"nvflare": version("nvflare"), "python": platform.python_version()},
        "settings": job.to_dict(),
    }
    write_record(places, about, signer)


def is_own(folder: Path) -> bool:
    """Whether a run is as this account signed it, so that it may sign what its own commands make of it.

    Raises:
        UserError: a file cannot be read.
    """
    verdict = verify(folder, Trust("this account", public=owner_signer().public))
    simulated = verdict.record is not None and verdict.record.record.made_by == "simulator"
    return simulated and not verdict.problems


def sign_again(folder: Path, forgotten: str) -> None:
    """Signs a run once more after a site was forgotten; see `is_own`.

    Raises:
        OSError: a file cannot be read or written.
        UserError: the earlier record cannot be read.
    """
    earlier = read_record(folder / SUPER_MODEL / RECORD)
    assert earlier is not None  # `Forgetting` keeps it
    about = earlier.record.plain()
    about |= {"sites": [s for s in about["sites"] if s != forgotten], "forgotten": [*about["forgotten"], forgotten]}
    left_out = ("format", "made", "files")
    write_record(places_in(folder), {k: v for k, v in about.items() if k not in left_out}, owner_signer())
