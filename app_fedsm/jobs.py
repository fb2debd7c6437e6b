"""The job folders of `jobs/`: every method and task, the paper's with its selector. `python -m app_fedsm.jobs DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from tqdm import tqdm

from app_fedsm.config.build import build_settings, tracks_of
from app_fedsm.config.names import available
from fedsm.core.settings import JobSettings

PAPER_TASKS = ("retinal", "prostate")
PAPER_SELECTOR = "gradient"  # the paper trains a VGG-11; the default, which needs no training, came later
# FLARE lets a job name classes that are not its own where the workspace allows them, or where the job brings code
# (BYOC), which is what a folder `app/custom` means to it: so the plain simulator takes these jobs on any workspace.
NOTE = """This folder makes the job run under plain `nvflare simulator`: unless the workspace was prepared, FLARE (2.9)
lets a job without code name FLARE's own classes only. The code itself is the installed package `fedsm`.

Hospitals that forbid jobs with code: delete this folder, or write the job anew with `fedsm job export`.
"""


def job_name(settings: JobSettings) -> str:
    """The name of a job's folder where nothing else was asked for."""
    return f"{settings.method.replace('-', '_')}_{settings.task.name}"


def paper_jobs() -> dict[str, JobSettings]:
    """Name of the job -> its settings, for every method and task there is."""
    jobs = {}
    for method in available("methods"):
        untrained = tracks_of(method).get("selector", {}).get("kind") == "selector_statistics"
        for task in available("tasks"):
            paper = untrained and task in PAPER_TASKS  # said in jobs/README.md and in `--selector`'s help
            settings = build_settings(task, method, selector=PAPER_SELECTOR if paper else None)
            jobs[job_name(settings)] = settings
    return jobs


def write_job(name: str, settings: JobSettings, folder: Path) -> None:
    """Writes one job folder as `jobs/` holds it, with the note for the plain simulator."""
    from app_fedsm.recipes import FedSMRecipe

    FedSMRecipe(name, settings=settings).export(str(folder))
    note = folder / name / "app" / "custom" / "README.md"
    note.parent.mkdir()
    note.write_text(NOTE, encoding="utf-8")


def main(argv: list[str]) -> int:
    """Writes them all."""
    for name, settings in tqdm(paper_jobs().items(), unit="job", disable=None):
        write_job(name, settings, Path(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
