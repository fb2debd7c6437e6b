"""The curves of a run, sent to whatever analytics receiver the job has (TensorBoard by default).

In the order of their rounds: the receiver of Weights & Biases drops what is of an earlier round than the last it got.
"""

from __future__ import annotations

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.widgets.streaming import create_analytic_dxo, send_analytic_dxo

from fedsm.core.web_address import check_answers

MLFLOW = "mlflow"  # the component's id


def check_receiver(fl_ctx: FLContext) -> None:
    """Checks that the MLflow server answers that the job names, if it names one.

    FLARE's receiver itself only writes to the log that it does not.

    Raises:
        UserError: it does not.
    """
    receiver = fl_ctx.get_engine().get_component(MLFLOW)
    if address := getattr(receiver, "tracking_uri", None):
        check_answers(address, "MLflow server")


def send_earlier(sender: FLComponent, history: list[dict], fl_ctx: FLContext) -> None:
    """The rounds before a resume: a receiver keeps those of its own job.

    The validation of the last one comes with the next round, or at the end.
    """
    for row in history:
        send_losses(sender, row, fl_ctx)
        if row is not history[-1]:
            send_validation(sender, row, fl_ctx)


def send_losses(sender: FLComponent, row: dict, fl_ctx: FLContext) -> None:
    """The losses of a round, from its row of the history."""
    for track, by_site in row["loss"].items():
        _send(sender, f"{track}/loss", by_site, row["round"], fl_ctx)


def send_validation(sender: FLComponent, row: dict, fl_ctx: FLContext) -> None:
    """The validation of the models that a round made, from its row of the history."""
    for track, by_site in row.get("validation", {}).items():
        _send(sender, f"{track}/validation", by_site | {"all": row["score"][track]}, row["round"], fl_ctx)


def _send(sender: FLComponent, tag: str, by_site: dict[str, float], step: int, fl_ctx: FLContext) -> None:
    for site, value in by_site.items():
        dxo = create_analytic_dxo(f"{tag}/{site}", value, AnalyticsDataType.SCALAR, global_step=step)
        send_analytic_dxo(sender, dxo, fl_ctx)
