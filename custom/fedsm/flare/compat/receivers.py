"""Lets FLARE's receivers of curves keep those of the server itself, and keeps them from disturbing a run.

On a server, FLARE 2.9's receivers for MLflow and Weights & Biases make a run for each client, for what clients send.
What the server's own components send has none and is dropped: with an error in the log, or without. At a client they
make one run, of that participant. So they are told that they are at a client.

The receiver of MLflow sends from the thread that plays the rounds. While its server is away, every single value waits
for it again. So there is a pause after each failure, in which values are dropped: results.json has them.
"""

from __future__ import annotations

import os
import time
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # MLflow: 7, minutes in which the round waits for a server that is gone
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # both packages report their use to their makers
    "WANDB_ERROR_REPORTING": "false",
}


_PAUSE = 60.0  # seconds


class _OneParticipant:
    """A context as it is at a client, where FLARE's receivers make one run."""

    def __init__(self, fl_ctx: FLContext):
        self._fl_ctx = fl_ctx

    def get_process_type(self, default: Any = None) -> str:
        return ProcessType.CLIENT_JOB

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fl_ctx, name)


def set_tracking_defaults() -> None:
    """Sets what the packages read from the environment, unless it is set. To be called before they are imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def receive_own_curves() -> None:
    """Lets receivers that take no site's messages make one run, for the server's curves, in the job's folder.

    To be called before the run starts.
    """
    set_tracking_defaults()
    if getattr(AnalyticsReceiver, "fedsm_own_curves", False):
        return
    start = AnalyticsReceiver._handle_start_run_event

    def start_with_one(self: AnalyticsReceiver, fl_ctx: FLContext) -> None:
        if self.events != [ANALYTIC_EVENT_TYPE]:
            start(self, fl_ctx)
            return
        if hasattr(self, "wandb_args"):  # it would write to wherever the server was started
            self.wandb_args.setdefault("dir", fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
        _pause_after_failures(self)
        start(self, _OneParticipant(fl_ctx))

    AnalyticsReceiver._handle_start_run_event = start_with_one
    AnalyticsReceiver.fedsm_own_curves = True


def _pause_after_failures(receiver: AnalyticsReceiver) -> None:
    save, again_at = receiver.save, 0.0

    def save_or_drop(**given: Any) -> None:
        nonlocal again_at
        if time.monotonic() < again_at:
            return
        try:
            save(**given)
        except Exception:  # FLARE writes it to the log
            again_at = time.monotonic() + _PAUSE
            raise

    receiver.save = save_or_drop
