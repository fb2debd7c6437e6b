"""FLARE's own privacy filters at some of the sites, in real FLARE processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app_fedsm.cli.main import main
from app_fedsm.runs.simulate import _SITE_LOST
from app_fedsm.runs.workspace import prepare_workspace
from tests.helpers.processes import processes_of
from tests.helpers.small_jobs import SITES, SMALL
from tests.helpers.weights import last_weights

FILTERS = {
    "site-2": [
        {"path": "nvflare.app_common.filters.exclude_vars.ExcludeVars", "args": {"exclude_vars": "^model\\.0\\."}},
        {
            "path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
            "args": {"percentile": 20, "gamma": 0.01},
        },
    ],
    "site-3": [
        {
            "path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
            "args": {"fraction": 0.5, "epsilon": 10.0, "noise_var": 10.0, "gamma": 0.001},
        }
    ],
}


def give_filters(job: Path) -> None:
    """Gives these sites an app of their own, with filters on what they send after training."""
    meta = json.loads((job / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", "site-1"]}
    for site, filters in FILTERS.items():
        shutil.copytree(job / "app", job / f"app_{site}")
        config = job / f"app_{site}" / "config" / "config_fed_client.json"
        content = json.loads(config.read_text())
        content["task_result_filters"] = [{"tasks": ["fedsm_train"], "filters": filters}]
        config.write_text(json.dumps(content))
        meta["deploy_map"][f"app_{site}"] = [site]
    (job / "meta.json").write_text(json.dumps(meta))


@pytest.mark.slow
def test_filters_of_flare_beside_a_site_that_has_none(tmp_path, data_root):
    assert main(["job", "export", *SMALL, "--rounds", "2", "--out", str(tmp_path)]) == 0
    job = tmp_path / "fedsm_retinal"
    give_filters(job)
    command = [str(Path(sys.executable).parent / "nvflare"), "simulator", str(job), "-n", "3", "-t", "3"]
    for attempt in range(3):
        workspace = tmp_path / f"ws{attempt}"
        prepare_workspace(workspace, data_root, threads=3)
        with (tmp_path / "log").open("wb") as log:
            subprocess.run([*command, "-w", str(workspace)], stdout=log, stderr=log, timeout=1800)
        for process in processes_of(workspace):
            process.kill()
        if not _SITE_LOST.search((tmp_path / "log").read_bytes()):  # FLARE's own race for a port
            break
    folder, log = workspace / "server" / "simulate_job", (tmp_path / "log").read_text()
    assert (folder / "results.json").is_file(), log[-3000:]
    history = json.loads((folder / "results.json").read_text())["validation"]["history"]
    assert [row["answered"] for row in history] == [SITES, SITES], [row["missing"] for row in history]
    for words in ("SVT privacy accountant", "Max abs delta_w"):
        assert words in log, "the filters were at work"
    for weights in last_weights(folder).values():
        assert all(torch.isfinite(t).all() for t in weights.values())
