"""Whole runs in FLARE's simulator whose curves go elsewhere than to TensorBoard, and their resume."""

import pytest

from app_fedsm.cli.main import main
from tests.helpers.small_jobs import SMALL
from tests.helpers.wandb_file import history

pytestmark = pytest.mark.slow
SECRET = "5ec2e7" * 7


@pytest.fixture
def run(tmp_path, data_root, monkeypatch):
    """Runs one round and resumes for a second one; returns the run's folder."""
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, SECRET)

    def started(kind: str):
        pytest.importorskip(kind)
        out = tmp_path / kind
        command = ["run", *SMALL, "--data", str(data_root), "--rounds", "1", "--out", str(out), "--track", kind]
        assert main(command) == 0
        assert main(["resume", str(out), "--rounds", "2"]) == 0
        kept = [path for path in out.rglob("*") if path.is_file()]
        assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
        assert not [path for path in kept if path.stat().st_mode & 0o077], "others can read none of it"
        assert not (out / "tb_events").exists()
        return out

    return started


def test_mlflow(run):
    out = run("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{out}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'fedsm_retinal'")
    (found,) = client.search_runs([experiment.experiment_id])
    steps = [point.step for point in client.get_metric_history(found.info.run_id, "global/loss/site-1")]
    assert steps == [1, 2] and found.info.status == "FINISHED"


def test_wandb(run):
    folders = sorted((run("wandb") / "wandb").iterdir())
    assert [[row["_step"] for row in history(folder)] for folder in folders] == [[1], [1, 2]]
