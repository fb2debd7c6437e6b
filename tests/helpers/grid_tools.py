"""What tests of `fedsm experiment` share: grids in a line of YAML, and runs that only pretend."""

import json
from pathlib import Path

from app_fedsm.experiments.grid import build_experiment
from app_fedsm.experiments.grid_run import SPEC
from app_fedsm.experiments.grid_state import Grid
from fedsm.core.yaml_file import parse_value
from fedsm.evaluation.row_scores import FILE as IMAGE_SCORES

SITES = ["a", "b"]
SMALL = {
    "task": "retinal", "size": 32, "batch_size": 4, "rounds": 1, "task.unet.channels": [4, 8, 16],
    "task.unet.residual_units": 1, "task.selector_net": {"head": "gap", "width": 0.0625},
}  # fmt: skip


def build(content: str, options: dict | None = None, out: Path = Path("out"), **given):
    content = parse_value(content, "test")
    content["base"] = {"task": "retinal"} | content.get("base", {})
    return build_experiment("grid", content, options or {}, given | {"out": str(out)})


def names(experiment) -> list[str]:
    return [row.name for row in experiment.rows]


class Done:
    """A process that has ended."""

    def __init__(self, code: int):
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def results(dice: float, validation: float, run, sites=SITES) -> dict:
    """results.json of a run whose global model scores `dice` at the first site and 0.1 more at each next one."""
    per_site = {site: dice + 0.1 * i for i, site in enumerate(sites)}
    table = {"per_site": per_site, "client_avg": dice + 0.05, "global": dice + 0.06, "per_label": {"disc": dice}}
    better = {k: ({s: v + 0.02 for s, v in per_site.items()} if k == "per_site" else v) for k, v in table.items()}
    return {
        "settings": run.settings.to_dict(), "gamma": 0.5,
        "images": {s: {"test": 2 + i, "validation": 1} for i, s in enumerate(sites)},
        "validation": {"best": {"global": {"score": validation - 0.1}}, "super_model": validation},
        "test": {
            "global": table, "personal_own": table, "super_model": better,
            "selector_accuracy": {"per_site": {"a": 0.5, "b": 1.0}, "mean": 0.75},
            "candidates": {s: {"personal.a": 0.5 + 0.2 * i, "personal.b": 0.3} for i, s in enumerate(sites)},
        },
    }  # fmt: skip


def starter(scores, started: list | None = None, image_scores=None):
    """Stands in for a run's process: `scores(run)` gives (dice, validation), or None for a run that fails;
    `image_scores(run)` what its file of the same name holds."""

    def start(run, spec):
        if started is not None:
            started.append(run.key)
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / SPEC).write_text(json.dumps(spec))
        score = scores(run)
        if score is None:
            (run.folder / "experiment.log").write_text("first\nsite 'a' is gone\n")
            return Done(1)
        (run.folder / "results.json").write_text(json.dumps(results(*score, run)))
        (run.folder / IMAGE_SCORES).write_text(json.dumps(image_scores(run) if image_scores else {"absent": "a test"}))
        return Done(0)

    return start


def make_grid(experiment, tmp_path) -> Grid:
    grid = Grid(experiment, tmp_path / "data", SITES)
    grid.check()
    return grid
