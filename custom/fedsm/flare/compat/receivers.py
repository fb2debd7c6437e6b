"""FLARE's receivers of curves for MLflow and Weights & Biases, as our jobs may name them: see the modules beside this.

They keep the curves of the server itself. On a server, those of FLARE 2.9 make a run for each client, for what clients
send. What the server's own components send has none and is dropped: with an error in the log, or without. At a client
they make one run, of that participant. So they are told that they are at a client.

They do not disturb a run. The receiver of MLflow sends from the thread that plays the rounds. While its server is away,
every single value waits for it again. So there is a pause after each failure, in which values are dropped: results.json
has them.

And they write nowhere but into the job's folder. FLARE's own take a path, or whatever else their package's options
make possible, from the job; so our kits allow these and not FLARE's.
"""

from __future__ import annotations

import os
import time
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE
from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.widgets.streaming import AnalyticsReceiver

OWN_CURVES = [ANALYTIC_EVENT_TYPE]  # and no "fed." before it: nothing that sites send

_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # MLflow: 7, minutes in which the round waits for a server that is gone
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # both packages report their use to their makers
    "WANDB_ERROR_REPORTING": "false",
}


_PAUSE = 60.0  # seconds


def set_tracking_defaults() -> None:
    """Sets what the packages read from the environment, unless it is set. To be called before they are imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


class OwnCurves(AnalyticsReceiver):
    """Makes one run for the server's own curves, of any of FLARE's receivers: to be inherited from before it."""

    _again_at = 0.0

    def initialize(self, fl_ctx: FLContext) -> None:
        """Starts the run, as at a client."""
        super().initialize(_OneParticipant(fl_ctx))

    def save(self, fl_ctx: FLContext, shareable: Shareable, record_origin: str) -> None:
        """Sends a value, or drops it in the minute after a failure."""
        if time.monotonic() < self._again_at:
            return
        try:
            super().save(fl_ctx=fl_ctx, shareable=shareable, record_origin=record_origin)
        except Exception:  # FLARE writes it to the log
            self._again_at = time.monotonic() + _PAUSE
            raise


class _OneParticipant:
    """A context as it is at a client, where FLARE's receivers make one run."""

    def __init__(self, fl_ctx: FLContext):
        self._fl_ctx = fl_ctx

    def get_process_type(self, default: Any = None) -> str:
        return ProcessType.CLIENT_JOB

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fl_ctx, name)
