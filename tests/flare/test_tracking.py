"""Curves of a real run in FLARE's own receivers, each with a real store: a database, and the files of wandb."""

import socket

import pytest

from app_fedsm.tracking import Tracking, receiver_of
from fedsm.flare import exchange
from tests.helpers.federation import Federation, in_round
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.wandb_file import history

KEY = "5ec2e7" * 7  # 40 characters or more
LOSSES = {f"{track}/loss/{site}" for track in ("global", "personal") for site in SITES}
SCORES = {f"{track}/validation/{site}" for track in ("global", "personal") for site in (*SITES, "all")}
AT_THE_END = {f"selector/validation/{site}" for site in (*SITES, "all")}  # this selector needs no rounds


def run_twice(tmp_path, data, tracking: Tracking) -> Federation:
    """Three rounds, a stop in the last, and the resume: returns the second part."""

    def stop_in_round_3(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 3:
            site.federation.abort.trigger(True)
        return result

    settings = small_settings(rounds=3)
    first = Federation(tmp_path / "a", data, settings, SITES, fault=stop_in_round_3).run()
    source = str(first.run_folder / "checkpoints")
    receiver = receiver_of(tracking, "fedsm_retinal", settings)
    components = {tracking.kind: receiver}
    second = Federation(tmp_path / "b", data, settings, SITES, source, components=components).run()
    assert second.panic is None
    return second


def test_mlflow_has_every_curve_with_all_rounds_once(tmp_path, data_root):
    """In the database of the job's folder, which is where FLARE's receiver puts it without an address."""
    mlflow = pytest.importorskip("mlflow")
    run = run_twice(tmp_path, data_root, Tracking("mlflow"))
    client = mlflow.MlflowClient(f"sqlite:///{run.run_folder}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'fedsm_retinal'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and found.data.tags["method"] == "fedsm"
    assert set(found.data.metrics) == LOSSES | SCORES | AT_THE_END
    for name in found.data.metrics:
        steps = [point.step for point in client.get_metric_history(found.info.run_id, name)]
        assert steps == ([3] if name in AT_THE_END else [1, 2, 3]), name


@pytest.mark.slow
def test_wandb_has_every_curve_with_all_rounds_once(tmp_path, data_root, monkeypatch):
    """Offline: files in the job's folder, which `wandb sync` would send. They do not name the machine, nor its key."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    run = run_twice(tmp_path, data_root, Tracking("wandb"))
    rows = history(run.run_folder / "wandb")
    assert [row["_step"] for row in rows] == [1, 2, 3]
    for row, more in zip(rows, (set(), set(), AT_THE_END), strict=True):
        assert {name for name in row if not name.startswith("_")} == LOSSES | SCORES | more
    kept = [path for path in (run.run_folder / "wandb").rglob("*") if path.is_file()]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]
    (file,) = (path for path in kept if path.suffix == ".wandb")
    assert not [word for word in (socket.gethostname(), str(tmp_path)) if b"%b" % word.encode() in file.read_bytes()]
