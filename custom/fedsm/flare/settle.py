"""The end of training: validates the last models, fetches those kept at the sites, and evaluates all candidates."""

from __future__ import annotations

from dataclasses import dataclass

from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedsm.core.tensors import Tensors
from fedsm.flare import exchange
from fedsm.flare.personal_mix import mix_personal
from fedsm.flare.run import Run
from fedsm.flare.task import TaskResults, TaskSpec
from fedsm.selectors.policy import Policy
from fedsm.server.evaluation_check import TEST, VALIDATION, evaluation_problem
from fedsm.server.policy_choice import choose_policy
from fedsm.tracks.base import DELIVER


@dataclass
class Scores:
    """What the sites say of the candidates on one part of their images.

    Attributes:
        scores: site -> its scores.
        results: the task's.
    """

    scores: dict[str, dict]
    results: TaskResults


@dataclass
class Outcome:
    """The candidates, how they are to be used, and their scores."""

    candidates: dict[str, Tensors]
    policy: Policy
    validation: Scores
    test: Scores


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
    run.record.facts |= {name: facts for name in names if (facts := run.tracks[name].facts())}
    run.checkpoint()


def try_candidates(run: Run) -> Outcome:
    """Lets every site score the super model's models: on its validation images, then, with the policy that was chosen
    from these scores, on its test images."""
    candidates = mix_personal(run, run.best_models())
    run.tracks.clear()  # the last models are in the checkpoint; the candidates take their place in memory
    cleanup_memory()
    run.progress.tell("evaluating")
    validations = _scores(run, candidates, VALIDATION, {})
    policy = choose_policy(validations.scores, run.job, run.sites)
    if run.stopped:
        return Outcome(candidates, policy, validations, validations)
    return Outcome(candidates, policy, validations, _scores(run, candidates, TEST, {"policy": policy.to_dict()}))


def _scores(run: Run, candidates: dict[str, Tensors], part: str, meta: dict) -> Scores:
    """One part of the evaluation."""

    def meta_problem(site: str, meta: dict) -> str | None:
        counts = run.aggregator.registry.images[site]
        return evaluation_problem(meta.get("evaluation"), part, run.job, run.sites, list(candidates), counts)

    spec = TaskSpec(
        f"evaluation of the candidates ({part})", exchange.EVALUATE, run.last_round, run.registered_here(),
        run.job.min_sites, meta={"part": part} | meta, payload=lambda site: candidates, meta_problem=meta_problem,
        timeout=run.job.evaluate_timeout,
    )  # fmt: skip
    results = run.run_task(spec)
    scores = {site: results.accepted[site]["evaluation"] for site in run.sites if site in results.accepted}
    return Scores(scores, results)
