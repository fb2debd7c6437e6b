"""The end of training: validates the last models, fetches those kept at the sites, and evaluates all candidates."""

from __future__ import annotations

from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.curves import send_validation
from fedsm.flare.run import Run
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.server.results import evaluation_problem
from fedsm.tracks.base import DELIVER


def settle(run: Run, last: int, names: list[str]) -> None:
    """Ends the training of these tracks after round `last`: their last models are validated, kept ones fetched."""
    run.progress.tell("validating")
    spec = TaskSpec(
        "validation of the last models", exchange.VALIDATE, last, run.registered_here(), run.job.min_sites, names,
        payload=lambda site: {name: run.tracks[name].payload(DELIVER, site) for name in names},
    )  # fmt: skip
    results = run.run_task(spec)
    if run.stopped:
        return
    reports = results.reports()
    run.record.add_once("delivery_down_bytes", results.down)
    run.record.add_once("delivery_up_bytes", results.up)
    run.record.add_validation(last, run.tracks, reports, delivered=True)
    for name in names:
        run.warn(run.tracks[name].close(DELIVER, {site: r[name] for site, r in reports.items() if name in r}))
    run.checkpoint()
    send_validation(run.controller, run.record.history[last - 1], run.fl_ctx)


def try_candidates(run: Run) -> tuple[dict[str, Tensors], TaskResults]:
    """Lets every site evaluate the super model's models on its own images; the answers hold the `evaluation`."""
    candidates = run.best_models()
    run.tracks.clear()  # the last models are in the checkpoint; the candidates take their place in memory
    cleanup_memory()
    run.progress.tell("evaluating")

    def meta_problem(site: str, meta: dict) -> str | None:
        counts = run.aggregator.registry.images[site]
        return evaluation_problem(meta.get("evaluation"), run.job, run.sites, list(candidates), counts)

    spec = TaskSpec(
        "evaluation of the candidates", exchange.EVALUATE, run.last_round, run.registered_here(), run.job.min_sites,
        payload=lambda site: candidates, meta_problem=meta_problem, timeout=run.job.evaluate_timeout,
    )  # fmt: skip
    return candidates, run.run_task(spec)
