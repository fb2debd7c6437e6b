"""The server's memory: the K + 1 models it holds and little else."""

from __future__ import annotations

from benchmarks.report import Check, Outcome
from benchmarks.simulator import SITES, TASK, Simulator

_MIB = 1024 * 1024
_SPARE = 4  # models a track beside the sites' own


def measure(simulator: Simulator) -> Outcome:
    """The server's peak over its start, from results.json of the shared run."""
    from app_fedsm.config.build import build_settings
    from fedsm.nets import build_unet, count_parameters

    unet = 4 * count_parameters(build_unet(build_settings(TASK, "fedsm").task)) / _MIB
    rss = simulator.default_run.results["peak_rss_mb"]
    allowed = (SITES + _SPARE) * unet * 2
    figures = {
        "unet_mib": unet,
        "start_mib": rss["server_start"],
        "peak_mib": rss["server"],
        "growth_mib": rss["server"] - rss["server_start"],
        "growth_allowed_mib": allowed,
    }
    return Outcome([Check("server's peak", rss["server"], rss["server_start"] + allowed, "MiB")], figures)
