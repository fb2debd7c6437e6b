"""The server's arithmetic against one plain copy of the same bytes.

`python -m benchmarks.aggregation` prints the figures as JSON; `measure` runs it in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from benchmarks.process import measure_module, say
from benchmarks.report import Check, Outcome
from benchmarks.simulator import TASK, Simulator

COUNTS = (6, 12, 24, 48)
COPY_BAR = 4.0
GROWTH_BAR = 5.0
_REPETITIONS = 25
_NOISE = 1.5  # if other programs slowed the copy down, the aggregation would look fast
_IMAGES = {"train": 10, "validation": 4, "test": 4}


def measure(simulator: Simulator) -> Outcome:
    """Time of `accept` for every site and `aggregate`, all checks included, for growing numbers of sites."""
    say(f"aggregation: {_REPETITIONS} repetitions for {', '.join(map(str, COUNTS))} sites")
    figures = measure_module("benchmarks.aggregation")
    checks = [Check(f"{k} sites, time / copy", figures["over_copy"][str(k)], COPY_BAR) for k in COUNTS]
    checks.append(Check("time of 48 sites / of 12", figures["growth_48_over_12"], GROWTH_BAR))
    noise = figures["copy_median_over_best"]
    error = f"machine busy (a copy took {noise:.1f} times its best): measure again" if noise > _NOISE else ""
    return Outcome(checks, figures, error)


def main() -> None:
    """Measures and prints."""
    import torch
    from nvflare.apis.dxo import DataKind
    from nvflare.apis.fl_context import FLContext, FLContextManager
    from tqdm import trange

    from app_fedsm.config.build import build_settings
    from fedsm.core.tensors import payload_bytes
    from fedsm.flare import exchange
    from fedsm.flare.aggregator import SoftPullAggregator
    from fedsm.flare.identity import set_sender
    from fedsm.flare.task import TaskSpec
    from fedsm.server.memory import return_freed_memory
    from fedsm.tracks import client_tracks, server_tracks
    from fedsm.tracks.base import REGISTER, TRAIN, SiteContext

    def context(site: str) -> FLContext:
        fl_ctx = FLContextManager(identity_name="server", job_id="job").new_context()
        fl_ctx.set_peer_context(FLContextManager(identity_name=site, job_id="job").new_context())
        set_sender(fl_ctx, site)
        return fl_ctx

    def registered(names: list[str]) -> SoftPullAggregator:
        aggregator = SoftPullAggregator()
        aggregator.bind(server_tracks(settings, names), names, settings)
        aggregator.begin(TaskSpec("a task", exchange.REGISTER, 0))
        answer = exchange.pack({"selector": sums}, {"round": 0, "images": _IMAGES}, DataKind.STATISTICS)
        for site in names:
            assert aggregator.accept(answer, contexts[site]), aggregator.results.refused
        return aggregator

    def aggregate(aggregator: SoftPullAggregator) -> float:
        aggregator.begin(TaskSpec("a task", exchange.TRAIN, 1))
        started = time.perf_counter()
        for site in aggregator.sites:
            aggregator.accept(answers[site], contexts[site])
        aggregator.aggregate(contexts[site])
        seconds = time.perf_counter() - started
        assert len(aggregator.results.accepted) == len(aggregator.sites), aggregator.results.refused
        return seconds

    def copy(names: list[str]) -> float:
        started = time.perf_counter()
        for site in names:
            for target, source in zip(copies[site], sources[site], strict=True):
                target.copy_(source)
        return time.perf_counter() - started

    torch.manual_seed(0)
    settings = build_settings(TASK, "fedsm", selector="statistics")
    sites = [f"site-{i + 1}" for i in range(max(COUNTS))]
    contexts = {site: context(site) for site in sites}
    selector = client_tracks(settings, SiteContext(0, len(sites), torch.device("cpu")))["selector"]
    pictures = torch.rand(_IMAGES["train"], settings.task.channels, 32, 32)
    sums = selector.send(REGISTER, [(pictures, pictures)])
    return_freed_memory()  # as the server does at its start: what is large comes from the system each time
    aggregators = {k: registered(sites[:k]) for k in COUNTS}

    # Every site has tensors of its own, as on a server: with one set for all the caches would do the work.
    template = {n: t.expects(TRAIN) for n, t in aggregators[COUNTS[0]].tracks.items() if t.expects(TRAIN)}
    updates = {
        site: {n: {k: 1e-3 * torch.randn_like(v) for k, v in t.items()} for n, t in template.items()} for site in sites
    }
    meta = {
        "round": 1,
        "images": _IMAGES,
        "reports": {n: {"score": 0.5, "images": _IMAGES["validation"]} for n in template},
        "losses": dict.fromkeys(template, 0.5),
    }
    answers = {site: exchange.pack(u, meta, DataKind.WEIGHT_DIFF) for site, u in updates.items()}
    sources = {site: [v for tensors in u.values() for v in tensors.values()] for site, u in updates.items()}
    copies = {site: [torch.zeros_like(v).fill_(1) for v in tensors] for site, tensors in sources.items()}

    # Each repetition measures all that is compared, one after the other: a disturbance then affects both.
    seconds = {k: [] for k in COUNTS}
    copy_seconds = {k: [] for k in COUNTS}
    for repetition in trange(1 + _REPETITIONS, desc="aggregation"):
        for k in COUNTS:
            copied, aggregated = copy(sites[:k]), aggregate(aggregators[k])
            if repetition:  # the first one only warms up
                copy_seconds[k].append(copied)
                seconds[k].append(aggregated)
    figures = {
        "threads": torch.get_num_threads(),
        "bytes": {k: k * payload_bytes(updates[sites[0]]) for k in COUNTS},
        "milliseconds": {k: 1000 * median(seconds[k]) for k in COUNTS},
        "copy_milliseconds": {k: 1000 * median(copy_seconds[k]) for k in COUNTS},
        "over_copy": {k: median(a / c for a, c in zip(seconds[k], copy_seconds[k], strict=True)) for k in COUNTS},
        "copy_median_over_best": max(median(c) / min(c) for c in copy_seconds.values()),
        "growth_48_over_12": median(a / b for a, b in zip(seconds[48], seconds[12], strict=True)),
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
