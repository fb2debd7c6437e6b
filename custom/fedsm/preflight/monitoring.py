"""Monitoring by StatsD, where the kit has it: the file is sound, and the package is there without which FLARE stops."""

from __future__ import annotations

import importlib.util
import json

from fedsm.preflight.kit import Kit
from fedsm.preflight.line import Line

FILE_NAME = "statsd__resources.json"  # FLARE reads local/*__resources.json beside resources.json, for jobs as well
REPORTER = "statsd_reporter"  # the component's id


def check_monitoring(kit: Kit) -> list[Line]:
    """One line where the kit has a monitoring file, none otherwise."""
    path = kit.local / FILE_NAME
    if not path.is_file():
        return []
    try:
        components = {part["id"]: part["args"] for part in json.loads(path.read_text(encoding="utf-8"))["components"]}
        where = f"{components[REPORTER]['host']}:{components[REPORTER]['port']}"
    except (OSError, ValueError, KeyError, TypeError) as e:
        return [Line("FAIL", "monitoring", f"local/{FILE_NAME} cannot be used: {e!r}", "correct it, or delete it")]
    if importlib.util.find_spec("datadog") is None:
        what = f"local/{FILE_NAME} needs the package datadog; FLARE does not start without it"
        return [Line("FAIL", "monitoring", what, f"pip install 'fedsm[statsd]', or delete local/{FILE_NAME}")]
    return [Line("PASS", "monitoring", f"FLARE's metrics go to {where} (StatsD)")]
