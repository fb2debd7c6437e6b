"""The same job in every environment of FLARE: real processes, and the weights of the plain loop each time.

`fedsm run` and plain `nvflare simulator` are in tests/app, keys that sites hold themselves in `test_site_keys.py`. All
are compared with the same plain loop, so they are equal to each other as well.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nvflare.recipe import PocEnv, ProdEnv

from app_fedsm.cli.main import main
from app_fedsm.recipes import EvaluationRecipe, FedSMRecipe
from tests.helpers.assertions import assert_equals_plain_loop
from tests.helpers.folders import ROOT
from tests.helpers.plain_loop import largest_difference
from tests.helpers.processes import free_port
from tests.helpers.real_kits import LEAD, RealFederation
from tests.helpers.small_jobs import SITES, SMALL_OPTIONS
from tests.helpers.weights import TOLERANCE, last_weights

pytestmark = pytest.mark.slow

JOB = SMALL_OPTIONS | {"selector": "gradient", "num_rounds": 2}


def server_folder(result: str) -> Path:
    """The server's folder of a job in what FLARE downloaded."""
    (found,) = Path(result).rglob("results.json")
    return found.parent


def test_poc_env(tmp_path, data_root, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    env = PocEnv(num_clients=len(SITES), extra={"data": str(data_root), "port": free_port()})
    try:
        run = FedSMRecipe("poc", **JOB).execute(env)
        folder = server_folder(run.get_result(clean_up=False))
        assert_equals_plain_loop(folder, data_root, rounds=2)
    finally:
        env.stop(clean_up=True)


def test_prod_env(tmp_path, data_root):
    """A training at named sites, one that goes on from it, and an evaluation of its super model."""
    federation = RealFederation(tmp_path, data_root)
    with federation.started():
        kit = str(federation.users[LEAD])
        run = FedSMRecipe("first", **JOB, sites=SITES).execute(ProdEnv(kit))
        folder = server_folder(run.get_result())
        assert_equals_plain_loop(folder, data_root, rounds=2)
        more = JOB | {"num_rounds": 3}
        again = FedSMRecipe("more", **more, sites=SITES, resume_from=f"job:{run.get_job_id()}").execute(ProdEnv(kit))
        folder = server_folder(again.get_result())
        assert_equals_plain_loop(folder, data_root, rounds=3)
        scored = EvaluationRecipe(model=folder / "super_model", sites=SITES).execute(ProdEnv(kit))
        (found,) = Path(scored.get_result()).rglob("evaluation.json")
        assert set(json.loads(found.read_text())["images"]) == set(SITES)


def test_job_py_is_fedsm_run(tmp_path, data_root):
    """`python job.py --env sim` and `fedsm run` with the same options."""
    command = [sys.executable, str(ROOT / "app_fedsm" / "job.py"), "--env", "sim", "--rounds", "1"]
    done = subprocess.run([*command, "--data", str(data_root)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = done.stdout.split("results:")[1].split()[0]
    options = ["--task", "retinal", "--rounds", "1", "--size", "64", "--batch-size", "4", "--lr", "3e-3"]
    assert main(["run", *options, "--data", str(data_root), "--out", str(tmp_path / "run")]) == 0
    ours, theirs = last_weights(tmp_path / "run"), last_weights(Path(result))
    assert ours.keys() == theirs.keys()
    for model in ours:
        assert largest_difference(ours[model], theirs[model]) < TOLERANCE, model
