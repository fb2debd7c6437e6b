"""A federation in which one site trains in a process of its own, and that is killed."""

import os
import signal

import psutil
import pytest
import torch

from fedsm.client import trainer_link
from fedsm.flare import exchange
from tests.helpers.federation import Federation, in_round, results_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.trainer_site import faulty, when_it_trains
from tests.helpers.weights import last_weights


@pytest.mark.slow
def test_a_trainer_that_is_killed_costs_its_site_one_round(tmp_path, data_root, monkeypatch):
    mark, personal = tmp_path / "trains", {}
    command = faulty("waits", mark)
    monkeypatch.setattr(trainer_link.TrainerLink.__init__, "__defaults__", (command,))

    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.TRAIN:
            number = in_round(shareable)
            personal[number] = {k: v.clone() for k, v in exchange.unpack(shareable)[1]["personal"].items()}
            if number == 2:
                pid = site.executor._trainer.pid
                when_it_trains(mark, lambda: os.kill(pid, signal.SIGKILL))
        return work()

    settings = small_settings(rounds=3, round_timeout=300)
    own = {"site-2": {"trainer": "process"}}
    federation = Federation(tmp_path / "run", data_root, settings, SITES, fault=fault, site_settings=own).run()
    federation.sites["site-2"].stop()
    assert federation.panic is None
    history = results_of(federation)["validation"]["history"]
    assert [row["answered"] for row in history] == [SITES, ["site-1", "site-3"], SITES]
    assert "was ended by SIGKILL" in history[1]["missing"]["site-2"]
    assert str(tmp_path) not in history[1]["missing"]["site-2"]
    assert all(torch.equal(personal[2][k], v) for k, v in personal[3].items()), "its personal model is kept"
    weights = last_weights(federation.run_folder)["personal.site-2"]
    assert not all(torch.equal(personal[3][k], v) for k, v in weights.items()), "and learned on in round 3"


@pytest.mark.slow
def test_a_device_process_that_is_killed_costs_its_site_one_round(tmp_path, data_root, monkeypatch):
    """A site of the simulator with two devices has a trainer's process, too."""
    mark = tmp_path / "trains"
    monkeypatch.setattr(trainer_link.TrainerLink.__init__, "__defaults__", (faulty("waits_for_other", mark),))
    seen = []

    def fault(site, task, shareable, work):
        if site.name == "site-2" and task == exchange.TRAIN and in_round(shareable) == 2:
            seen.extend(psutil.Process(site.executor._trainer.pid).children())
            when_it_trains(mark, seen[0].kill)
        return work()

    settings = small_settings(rounds=3, round_timeout=300, selector="statistics")
    own = {"site-2": {"trainer": None, "device": "cpu", "devices": 2}}
    federation = Federation(tmp_path / "run", data_root, settings, SITES, fault=fault, site_settings=own).run()
    federation.sites["site-2"].stop()
    assert federation.panic is None
    history = results_of(federation)["validation"]["history"]
    assert [row["answered"] for row in history] == [SITES, ["site-1", "site-3"], SITES]
    assert "device process 2 of 2 (cpu) was ended by SIGKILL" in history[1]["missing"]["site-2"]
    assert not psutil.wait_procs(seen, 600)[1]
