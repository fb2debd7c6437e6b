"""FLARE's receiver for MLflow, for the server's own curves: on an MLflow server, or in the job's folder."""

from __future__ import annotations

from fedsm.core.web_address import check_web_address
from fedsm.flare.compat.receivers import OWN_CURVES, OwnCurves, set_tracking_defaults

set_tracking_defaults()

from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver  # noqa: E402  (it imports mlflow)


class MLflowCurves(OwnCurves, MLflowReceiver):
    """Sends the curves of a run to MLflow.

    FLARE's own takes any store that MLflow knows: with `sqlite:////any/path` a job without code has a database written
    wherever the server's user may write.

    Args:
        tracking_uri: address of an MLflow server; default: `mlflow.db` in the job's folder.
        kw_args: names and tags of experiment and run, as FLARE's receiver takes them.

    Raises:
        UserError: the address is not that of a web server.
    """

    def __init__(self, tracking_uri: str | None = None, kw_args: dict | None = None):
        where = None if tracking_uri is None else check_web_address(str(tracking_uri), "tracking_uri")
        super().__init__(tracking_uri=where, kw_args=kw_args, events=OWN_CURVES)
