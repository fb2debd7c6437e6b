"""A round in numbers for those who operate the server: published to FLARE's data bus, once the round is closed.

Where the server's kit has a reporter (docs/how-to/monitoring.md) it sends them on; elsewhere nobody listens. What is
published are the server's own counts and times and its pooled scores, nothing that a site can name.
"""

from __future__ import annotations

from nvflare.fuel.data_event.data_bus import DataBus
from nvflare.metrics.metrics_keys import MetricKeys, MetricTypes
from nvflare.metrics.metrics_publisher import publish_app_metrics


def publish_round(row: dict, score: dict[str, float], job_id: str) -> None:
    """Publishes a round.

    Args:
        row: its row of the history.
        score: track -> pooled validation score of the models that it began with.
        job_id: FLARE's id of the job, a tag of every metric.
    """
    counts = {"number": row["round"], "answered": len(row["answered"]), "missing": len(row["missing"])}
    _publish("fedsm_round", counts | {"seconds": row["seconds"], "attempts": row["attempts"]}, job_id)
    _publish("fedsm_validation", score, job_id)


def _publish(name: str, values: dict[str, float], job_id: str) -> None:
    gauges = values | {MetricKeys.type: MetricTypes.GAUGE}
    publish_app_metrics(gauges, name, {"job_id": job_id}, DataBus())
