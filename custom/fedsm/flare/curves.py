"""The curves of a run, sent to whatever analytics receiver the job has (TensorBoard by default)."""

from __future__ import annotations

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.widgets.streaming import create_analytic_dxo, send_analytic_dxo


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
