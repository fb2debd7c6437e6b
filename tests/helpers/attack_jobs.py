"""Jobs of two users on one server, in one process; and what a folder holds, to see that nothing in it changed."""

from __future__ import annotations

import json
from pathlib import Path

from fedsm.flare.evaluation import EvaluationController
from fedsm.server.checkpoint import FOLDER
from fedsm.server.checkpoint_dirs import RUNS
from tests.helpers.federation import Fault, Federation
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.small_model import write_super_model

LEAD, OTHER, ADMIN = (
    {"submitter_name": name, "submitter_org": "org", "submitter_role": role}
    for name, role in (("lead@a.org", "lead"), ("other@b.org", "lead"), ("admin@c.org", "project_admin"))
)


def run_job(folder: Path, data_root: Path, job_id: str, submitter: dict | None, **more) -> Federation:
    """A job of one round on the server in `folder`, to its end."""
    settings = more.pop("settings", None) or small_settings(rounds=1)
    return Federation(folder, data_root, settings, SITES, job_id=job_id, submitter=submitter, **more).run()


def run_evaluation(folder: Path, data_root: Path, fault: Fault) -> Federation:
    """An evaluation of a super model with random weights, on all images of the sites."""
    labels = {"labels": list(small_settings().task.labels)}
    write_super_model(folder / "server" / "job-1" / "app_server" / "config", policy=labels)
    return run_job(folder, data_root, "job-1", LEAD, controller=EvaluationController(part="all"), fault=fault)


def kept(folder: Path, job_id: str) -> Path:
    """Where the server keeps the checkpoints of a job."""
    return folder / "server" / RUNS / job_id


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def forge(checkpoints: Path, **record) -> None:
    """Changes what the newest checkpoint of a folder says of its run."""
    path = max(checkpoints.glob("round_*.json"))
    state = json.loads(path.read_text())
    state["record"] |= record
    path.write_text(json.dumps(state))


__all__ = ["ADMIN", "FOLDER", "LEAD", "OTHER", "bytes_of", "forge", "kept", "run_evaluation", "run_job"]
