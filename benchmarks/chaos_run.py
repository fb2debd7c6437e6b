"""The two runs of the chaos benchmark: undisturbed, and with everything that goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from app_fedsm.config.build import build_settings
from app_fedsm.runs.run_folder import prepare_folder
from app_fedsm.runs.simulate import SimulationFailed, simulate
from benchmarks.chaos_kill import Killer
from benchmarks.chaos_plan import Plan
from benchmarks.process import Failed, say
from fedsm.client.site_settings import FILE_NAME, PROCESS
from fedsm.core.settings import JobSettings
from fedsm.flare import exchange

MIN_SITES = 2
SIZE = 48
IMAGES = 40
_FILTER = "benchmarks.chaos_filter.ChaosFilter"


def settings_of(rounds: int, seed: int) -> JobSettings:
    """A small job that has learned when it ends: while Dice still climbs, every lost round is seen in it."""
    return build_settings(
        task="retinal", method="fedsm", rounds=rounds, seed=seed, size=SIZE, batch_size=4, local_epochs=4, lr=2e-3,
        min_sites=MIN_SITES, round_timeout=300, overrides=[
            "task.unet.channels=[8,16,32]", "task.unet.residual_units=1",
            "task.selector_net={head: gap, width: 0.0625}",
        ],
    )  # fmt: skip


def adapt(job: Path, workspace: Path, plan: Plan | None) -> None:
    """Lets the sites train in processes of their own with one thread, and puts the filter at every site."""
    site_file = workspace / "local" / FILE_NAME
    values = yaml.safe_load(site_file.read_text()) | {"trainer": PROCESS, "threads": 1}
    site_file.write_text(yaml.safe_dump(values))
    if plan is None:
        return
    resources = workspace / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content["class_allow_list"].append(_FILTER)
    resources.write_text(json.dumps(content))
    config = job / "app" / "config" / "config_fed_client.json"
    content = json.loads(config.read_text())
    struck = {"path": _FILTER, "args": {"faults": plan.faults}}
    content["task_result_filters"] = [{"tasks": [exchange.TRAIN], "filters": [struck]}]
    config.write_text(json.dumps(content))


def undisturbed(data: Path, settings: JobSettings, sites: list[str], out: Path) -> dict:
    """The run to compare with; returns its results."""
    say("== undisturbed run")
    prepare_folder(out, resume=False, force=True)
    try:
        return simulate(settings, data, sites, out, len(sites), False, adapt=lambda j, w: adapt(j, w, None))
    except SimulationFailed as e:
        raise Failed(f"the undisturbed run: {e}") from e


def disturbed(data: Path, settings: JobSettings, sites: list[str], out: Path, plan: Plan) -> tuple[dict, Killer]:
    """The chaos run, resumed where the server was killed; returns its results and who was killed.

    Raises:
        Failed: it did not reach its end.
    """
    say("== chaos run")
    prepare_folder(out, resume=False, force=True)

    def start(resume: bool) -> dict:
        return simulate(settings, data, sites, out, len(sites), resume, adapt=lambda j, w: adapt(j, w, plan))

    with Killer(out.resolve(), plan, settings.rounds, settings.seed) as killer:
        try:
            results = start(resume=False)
        except SimulationFailed as e:
            if killer.server is None:
                raise Failed(f"the chaos run: {e}") from e
            say("resuming, as `fedsm run --resume` does")
            prepare_folder(out, resume=True, force=False)
            try:
                results = start(resume=True)
            except SimulationFailed as again:
                raise Failed(f"the chaos run, resumed: {again}") from again
    return results, killer
