"""Where a run's curves go: TensorBoard's files, MLflow, Weights & Biases, or nowhere.

The receivers are FLARE's own; those for MLflow and Weights & Biases through classes of ours, which bound what a job
may ask of them. They take the controller's curves only: by default they also take what sites send, under any name and
of any size. What they are given becomes part of the job, which travels: no passwords, keys or tokens.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app_fedsm.config.names import MLFLOW, NO_TRACKING, TENSORBOARD, TRACKING, WANDB
from fedsm.core.errors import UserError
from fedsm.core.web_address import check_answers, check_web_address

if TYPE_CHECKING:
    from nvflare.app_common.widgets.streaming import AnalyticsReceiver

    from fedsm.core.settings import JobSettings

_URI, _MODE = "MLFLOW_TRACKING_URI", "WANDB_MODE"
_PACKAGES = {MLFLOW: ("mlflow", "alembic"), WANDB: ("wandb",)}


@dataclass(frozen=True)
class Tracking:
    """Where the curves go.

    Attributes:
        kind: tensorboard, mlflow, wandb or none.
        uri: address of an MLflow server; None: a database in the job's folder.
        mode: of Weights & Biases: offline (files in the job's folder) or online.
    """

    kind: str = TENSORBOARD
    uri: str | None = None
    mode: str = "offline"

    def note(self) -> dict[str, str | None]:
        """What run.json says of it, for a resume."""
        return {"track": self.kind, "track_uri": self.uri, "track_mode": self.mode}

    def check_answers(self) -> None:
        """Checks that the MLflow server can be reached from here.

        Raises:
            UserError: it cannot.
        """
        if self.uri:
            check_answers(self.uri, "MLflow server")


DEFAULT_TRACKING = Tracking()


def choose_tracking(kind: str | None = None, uri: str | None = None) -> Tracking:
    """What was asked for, checked as far as this machine can.

    Args:
        kind: tensorboard (default), mlflow, wandb or none.
        uri: address of an MLflow server; default: MLFLOW_TRACKING_URI.

    Raises:
        UserError: an unknown kind, a package that is not installed, or an address that cannot be used.
    """
    if uri is None and kind == MLFLOW and os.environ.get(_URI):
        return _checked(kind, os.environ[_URI], DEFAULT_TRACKING.mode, _URI)
    return _checked(kind or TENSORBOARD, uri, os.environ.get(_MODE) or DEFAULT_TRACKING.mode, "--track-uri")


def noted_tracking(run: dict) -> Tracking:
    """That of a run which is resumed, from its run.json; runs of earlier versions went to TensorBoard.

    Raises:
        UserError: as `choose_tracking`.
    """
    kind, uri, mode = (run.get(key) for key in DEFAULT_TRACKING.note())
    return _checked(kind or TENSORBOARD, uri, mode or DEFAULT_TRACKING.mode, "run.json")


def _checked(kind: str, uri: str | None, mode: str, where: str) -> Tracking:
    if kind not in TRACKING:
        raise UserError(f"track {kind!r} is none of {', '.join(TRACKING)}")
    if missing := [name for name in _PACKAGES.get(kind, ()) if importlib.util.find_spec(name) is None]:
        raise UserError(f"{kind} needs the package {missing[0]}", remedy=f"pip install 'fedsm[{kind}]'")
    if kind == WANDB and mode not in ("online", "offline"):
        raise UserError(f"{_MODE} is {mode!r}", remedy="write online or offline, or leave it out")
    if uri and kind != MLFLOW:
        raise UserError(f"{where} is the address of an MLflow server, and the curves go to {kind}")
    return Tracking(
        kind, check_web_address(uri, where) if uri else None, mode if kind == WANDB else DEFAULT_TRACKING.mode
    )


def receiver_of(tracking: Tracking, name: str, settings: JobSettings) -> AnalyticsReceiver | None:
    """FLARE's receiver; None for no curves.

    Args:
        tracking: where the curves go.
        name: the job's.
        settings: the job's; the main ones are noted with the curves.
    """
    about = {"task": settings.task.name, "method": settings.method, "rounds": settings.rounds, "seed": settings.seed}
    if tracking.kind == MLFLOW:
        from fedsm.flare.compat.mlflow_curves import MLflowCurves

        tags = {key: str(value) for key, value in about.items()}
        where = {"experiment_name": f"fedsm_{settings.task.name}", "run_name": "curves", "run_tags": tags}
        return MLflowCurves(tracking_uri=tracking.uri, kw_args=where)
    if tracking.kind == WANDB:
        from fedsm.flare.compat.wandb_curves import WandBCurves

        run = {"project": f"fedsm_{settings.task.name}", "name": name, "group": name, "job_type": settings.method}
        return WandBCurves(run | {"config": about}, mode=tracking.mode)
    if tracking.kind == NO_TRACKING:
        return None
    from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver

    from fedsm.flare.compat.receivers import OWN_CURVES

    return TBAnalyticsReceiver(events=OWN_CURVES)
