"""Runs whose personal models are in files at the server: the same weights, resumed, killed, and on a full disk."""

import os
import subprocess
import sys
import time

import pytest
import torch

from fedsm.core.model_store import FOLDER
from fedsm.flare import exchange
from fedsm.server.checkpoint import Checkpoints
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.plain_loop import algorithm_1, largest_difference
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.weights import TOLERANCE, last_weights

SETTINGS = {"selector": "statistics", "lam": 0.7}
ON_DISK = ["personal_models=disk"]
KILLS = 10


def on_disk(**given):
    return small_settings(**SETTINGS | given, overrides=ON_DISK)


def assert_same(one, two) -> None:
    a, b = last_weights(one.run_folder), last_weights(two.run_folder)
    assert a.keys() == b.keys()
    for model in a:
        assert all(torch.equal(a[model][key], value) for key, value in b[model].items()), model


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data_root):
    federation = Federation(tmp_path_factory.mktemp("straight"), data_root, on_disk(), SITES).run()
    assert federation.panic is None
    return federation


def test_it_equals_the_plain_loop(straight, data_root):
    weights, plain = last_weights(straight.run_folder), algorithm_1(
        data_root, on_disk(), SITES, lam=0.7, selector="statistics"
    )  # fmt: skip
    for model in ["global", *(f"personal.{site}" for site in SITES)]:
        assert largest_difference(weights[model], plain[model]) < TOLERANCE, model


def test_what_is_left_are_checkpoints_and_results(straight):
    assert not (straight.run_folder / FOLDER).exists()
    assert results_of(straight)["sites"] == SITES


def test_averages_and_thin_wires_equal_those_in_memory(tmp_path, data_root):
    given = SETTINGS | {"ema": 0.5, "wire": "int8", "rounds": 2}
    runs = [
        Federation(tmp_path / name, data_root, small_settings(**given, overrides=overrides), SITES).run()
        for name, overrides in (("memory", []), ("disk", ON_DISK))
    ]
    assert_same(*runs)
    assert results_of(runs[0])["test"] == results_of(runs[1])["test"]


def test_it_resumes_after_the_server_died(tmp_path, data_root, straight):
    """Stopped in round 3 when some sites' updates are in the files already, which are left behind then."""

    def stop_in_round_3(site, task, shareable, work):
        result = work()
        if task == exchange.TRAIN and in_round(shareable) == 3 and site.name == SITES[1]:
            federation = site.federation
            while SITES[0] not in federation.aggregator.results.accepted:
                time.sleep(0.01)
            (federation.run_folder / FOLDER).rename(left)
            federation.abort.trigger(True)
        return result

    left = tmp_path / "left"
    stopped = Federation(tmp_path / "run", data_root, on_disk(), SITES, fault=stop_in_round_3).run()
    assert stopped.controller._run.last_round == 2
    saved = tmp_path / "saved"
    stopped.run_folder.rename(saved)
    left.rename(saved / FOLDER)
    stopped.run_folder.mkdir()
    again = Federation(
        tmp_path / "run", data_root, on_disk(), SITES, resume_from=str(saved / "checkpoints")
    ).run()  # fmt: skip
    assert again.panic is None
    assert_same(straight, again)


_SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from fedsm.core.model_store import FromFile, OnDisk, editing, stored
from fedsm.server.checkpoint import Checkpoints
from fedsm.tracks import pull_on_disk

torch.set_num_threads(1)
folder, rng = Path(sys.argv[1]), random.Random(0)
names = ["personal.a", "personal.b", "personal.c"]
checkpoints = Checkpoints(folder / "checkpoints")
first = {name: {"w": torch.full((500, 1000), float(k))} for k, name in enumerate(names)}
store = OnDisk(folder / "models")
checkpoints.save(1, {name: store.put(name, tensors) for name, tensors in first.items()}, {})

def pull_for_ever(models):
    for number in range(10**9):
        for model in models.values():
            with editing(model) as own:
                own["w"] += 1
        pull_on_disk.soft_pull_([stored(model) for model in models.values()], 0.7, frozenset())

for _ in range(int(sys.argv[2])):
    state = Checkpoints(folder / "checkpoints").load()
    store = OnDisk(folder / "models")
    models = {name: store.adopt(name, checkpoints.load_weights(file)) for name, file in state["files"].items()}
    child = os.fork()
    if not child:
        pull_for_ever(models)
    last = folder / "models" / "personal.c.safetensors"
    while last.stat().st_nlink > 1:  # until it is a file of its own, and changed in place from then on
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    changed = [not torch.equal(dict(models[name])["w"], first[name]["w"]) for name in names]
    assert all(changed[:2]), "it was killed before it began"
    for name, file in state["files"].items():
        assert torch.equal(checkpoints.load_weights(file)["w"], first[name]["w"]), name
    print("killed", flush=True)
"""


def test_kill_9_in_the_middle_of_a_pull_leaves_the_checkpoint(tmp_path):
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["killed"] * KILLS


def test_a_full_disk_stops_the_job_with_its_checkpoint(tmp_path, data_root, monkeypatch):
    """No room for a changed model: one line, and the last round is there."""
    from fedsm.core import model_store

    def full(source, target):
        if (tmp_path / "server" / "simulate_job" / "checkpoints" / "round_000001.json").exists():
            raise OSError(28, os.strerror(28))
        return real(source, target)

    real = model_store.shutil.copyfile
    monkeypatch.setattr(model_store.shutil, "copyfile", full)
    stopped = Federation(tmp_path, data_root, on_disk(), SITES).run()
    assert "No space left" in stopped.panic and "fedsm resume RUN" in stopped.panic
    assert Checkpoints(stopped.run_folder / "checkpoints").load()["round"] == 1
