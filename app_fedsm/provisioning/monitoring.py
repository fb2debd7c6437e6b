"""Monitoring by StatsD: FLARE's own collectors and reporter, in a file of a kit's `local/` folder.

The file is the participant's own, like the rest of that folder: whoever runs the machine decides whether anything is
sent, and where to. A job cannot.
"""

from __future__ import annotations

import json
from pathlib import Path

from app_fedsm.provisioning.ports import port_problem
from fedsm.preflight.monitoring import FILE_NAME, REPORTER


def parse_statsd(address: object) -> tuple[str, int] | None:
    """Host and port of `HOST:PORT`; None if it is not of that form."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal() or port_problem(int(port)):
        return None
    return host, int(port)


def write_monitoring(kit: Path, name: str, host: str, port: int) -> None:
    """Lets a participant report to a StatsD daemon; a file that is there already stays.

    Args:
        kit: the participant's kit.
        name: its name, in the tags of every metric.
        host: the daemon's host.
        port: its UDP port.
    """
    path = kit / "local" / FILE_NAME
    if path.exists():
        return
    tags = {"tags": {"site": name}}
    parts = {
        REPORTER: ("nvflare.fuel_opt.statsd.statsd_reporter.StatsDReporter", {"host": host, "port": port}),
        "system_metrics": ("nvflare.metrics.system_metrics_collector.SysMetricsCollector", tags),
        "job_metrics": ("nvflare.metrics.job_metrics_collector.JobMetricsCollector", tags),
    }
    components = [{"id": key, "path": cls, "args": args} for key, (cls, args) in parts.items()]
    path.write_text(json.dumps({"components": components}, indent=2) + "\n", encoding="utf-8")
