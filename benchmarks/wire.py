"""What travels: the models of a round and nothing else."""

from __future__ import annotations

from benchmarks.report import Check, Outcome
from benchmarks.simulator import TASK, Simulation, Simulator

_SLACK = 1.01
_STATISTICS_BAR = 100_000
_EIGHT_BITS_BAR = 0.26  # of float32's bytes: 1 byte for 4, a scale for 256 values, biases and norms as they are
# The fully connected head makes messages of half a gigabyte, in which two U-Nets are 2.5 %. With the small head a
# U-Net too many is a quarter: the bar is the harder one.
_HEAD = "task.selector_net.head=gap"
_GRADIENT_SITES, _GRADIENT_IMAGES, _GRADIENT_ROUNDS = 2, 12, 2


def _largest(results: dict) -> int:
    """The most bytes of a site and round, down or up."""
    wire = results["wire"]
    return max(n for way in ("down_bytes", "up_bytes") for rounds in wire[way].values() for n in rounds)


def _counted(results: dict) -> int:
    """All tensor bytes of a run: of the rounds, and those that travel once."""
    counts = (n for by_site in results["wire"].values() for n in by_site.values())
    return sum(sum(n) if isinstance(n, list) else n for n in counts)


def _loopback(run: Simulation, counted: int) -> dict:
    """What crossed the machine's loopback, whoever sent it: framing, acknowledgements, FLARE's heartbeats."""
    if run.loopback_bytes is None:
        return {}
    return {"loopback_bytes": run.loopback_bytes, "loopback_over_counted": run.loopback_bytes / counted}


def measure(simulator: Simulator) -> Outcome:
    """Bytes of a site and round with each selector, and the sums of `statistics`."""
    from app_fedsm.config.build import build_settings
    from fedsm.core.tensors import payload_bytes
    from fedsm.nets import build_selector, build_unet

    run = simulator.default_run
    small = simulator.write_data("small", _GRADIENT_SITES, _GRADIENT_IMAGES)
    gradient = simulator.run(small, "gradient", _GRADIENT_ROUNDS, "--selector", "gradient", "--set", _HEAD).results

    thin = simulator.run(small, "eight_bits", _GRADIENT_ROUNDS, "--set", "wire=int8").results

    task = build_settings(TASK, "fedsm", overrides=[_HEAD]).task
    w_g = payload_bytes({"net": dict(build_unet(task).named_parameters())})
    w_s = payload_bytes({"net": dict(build_selector(task, _GRADIENT_SITES).named_parameters())})

    counted = _counted(run.results)
    figures = {
        "w_g_bytes": w_g,
        "w_s_bytes": w_s,
        "gradient_bytes": _largest(gradient),
        "gradient_over_models": _largest(gradient) / (2 * w_g + w_s),
        "statistics_bytes": _largest(run.results),
        "statistics_over_models": _largest(run.results) / (2 * w_g),
        "eight_bits_bytes": _largest(thin),
        "eight_bits_over_float32": _largest(thin) / _largest(run.results),
        "registration_bytes": max(run.results["wire"]["registration_up_bytes"].values()),
        "counted_bytes": counted,
    } | _loopback(run, counted)
    checks = [
        Check("gradient, a site and round", figures["gradient_bytes"], _SLACK * (2 * w_g + w_s), "B"),
        Check("statistics, a site and round", figures["statistics_bytes"], _SLACK * 2 * w_g, "B"),
        Check("8 bits over float32, a site and round", figures["eight_bits_over_float32"], _EIGHT_BITS_BAR, ""),
        Check("sums of statistics, once", figures["registration_bytes"], _STATISTICS_BAR, "B"),
    ]
    return Outcome(checks, figures)
