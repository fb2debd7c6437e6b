"""Where a run stands when its command ends: what `--format json` tells, in the simulator and in federations."""

from __future__ import annotations

import contextlib
from pathlib import Path

from app_fedsm.cli.output import INTERRUPTED, JOB_FAILED, Problem, Result
from app_fedsm.cli.run_documents import RunEnd, RunResults
from app_fedsm.runs import hints
from app_fedsm.runs.run_folder import RESULTS, RUN, events_of, newest_checkpoint
from fedsm.core.errors import UserError
from fedsm.core.plain_json import read_json, reading
from fedsm.core.spread import site_spread, worst_site
from fedsm.evaluation.tables import row_titles, selector_means


def finished(out: Path, results: dict) -> Result:
    """A run that has results."""
    with reading(out / RESULTS, "copy the run again, or start it again with --force"):
        end = _end(out, "finished", results["sites"], results["rounds"], hints.next_commands(out, results))
        model = str((out / hints.SUPER_MODEL).resolve())
        more = {"rounds_done": results["rounds"], "results": _in_short(out, results), "super_model": model}
        return Result(0, end.model_copy(update=more))


def submitted(out: Path, sites: list[str], rounds: int) -> Result:
    """A job that was handed to a server and is not waited for."""
    return Result(0, _end(out, "submitted", sites, rounds, hints.ask_commands(out)))


def left_running(out: Path, sites: list[str], rounds: int) -> Result:
    """The command was stopped; the job on the server goes on."""
    commands = hints.ask_commands(out)
    problem = Problem(INTERRUPTED, "stopped; the job goes on", remedy=f"`{commands['fetch']}` waits for it")
    return Result(130, _end(out, "running", sites, rounds, commands), problem)


def failed(out: Path, sites: list[str], rounds: int, error: Exception, remedy: str) -> Result:
    """A run that ended without results; `remedy`: how to go on, see `hints.go_on`."""
    return _cut_short(out, "failed", sites, rounds, 1, Problem(JOB_FAILED, str(error), remedy=_one(remedy)))


def stopped(out: Path, sites: list[str], rounds: int, remedy: str) -> Result:
    """A run that a person stopped."""
    return _cut_short(out, "stopped", sites, rounds, 130, Problem(INTERRUPTED, "stopped", remedy=_one(remedy)))


def _cut_short(out: Path, state: str, sites: list[str], rounds: int, code: int, problem: Problem) -> Result:
    resume = hints.paste("fedsm", "resume", out)
    commands = {"resume": resume} if resume in str(problem.remedy) else {}
    return Result(code, _end(out, state, sites, rounds, commands), problem)


def _one(remedy: str) -> str:
    return "; ".join(remedy.splitlines())


def _end(out: Path, state: str, sites: list[str], rounds: int, commands: dict[str, str]) -> RunEnd:
    run = read_json(out / RUN) if (out / RUN).is_file() else {}
    checkpoint = newest_checkpoint(out)
    return RunEnd.model_validate(
        {
            "run": str(out.resolve()),
            "state": state,
            "job_id": run.get("job_id"),
            "sites": sites,
            "rounds": rounds,
            "rounds_done": _rounds_done(out),
            "checkpoint": checkpoint and str(checkpoint.resolve()),
            "results": None,
            "super_model": None,
            "commands": commands,
        }
    )


def _rounds_done(out: Path) -> int:
    with contextlib.suppress(UserError):  # a file that cannot be read: there is more important news
        return next((e["round"] for e in reversed(events_of(out)) if e["event"] == "round"), 0)
    return 0


def _in_short(out: Path, results: dict) -> RunResults:
    test, accuracy = results["test"], selector_means(results)
    rows = {key: test[key] for _, key in row_titles(results) if key in test}
    return RunResults.model_validate(
        {
            "file": str((out / RESULTS).resolve()),
            "gamma": results["gamma"],
            "test_images": {site: counts["test"] for site, counts in results["images"].items()},
            "test_dice": {key: _dice(row) for key, row in rows.items()},
            "selector_accuracy": accuracy and _means(*accuracy),
        }
    )


def _dice(row: dict) -> dict:
    worst = worst_site(row["per_site"])
    spread = {
        "worst_site": worst,
        "worst": row["per_site"].get(worst),
        "spread_over_sites": site_spread(row["per_site"]),
    }
    return _means(row["client_avg"], row["global"]) | spread


def _means(client_avg: float | None, all_images: float | None) -> dict[str, float | None]:
    return {"client_avg": client_avg, "all_images": all_images}
