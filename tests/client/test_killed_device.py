"""kill -9 of a device process, and of the trainer that started it: one round is lost, and nothing is left behind."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import TRAIN
from tests.client.test_devices import SAME, far
from tests.helpers.trainer_site import GO_ON, faulty, link_to, meta_of, payload_of, place_of, small_job, when_it_trains

SETTINGS = small_job(selector="statistics")
GONE = 600  # seconds at most


def train(worker, number: int):
    return worker.do(TRAIN, meta_of(SETTINGS, number), payload_of(SETTINGS, number), GO_ON)


def others(pid: int) -> list[psutil.Process]:
    """The device processes of a trainer."""
    return [p for p in psutil.Process(pid).children() if "fedsm.client.device_process" in p.cmdline()]


@pytest.mark.process
def test_a_killed_device_process_costs_one_round_and_leaves_no_orphan(tmp_path, data_root):
    mark, place = tmp_path / "trains", place_of(tmp_path / "two", data_root)
    file = Path(place.local) / "fedsm_site.yaml"
    file.write_text(file.read_text() + "device: cpu\ndevices: 2\n")
    with link_to(place, faulty("waits_for_other", mark)) as link:
        train(link, 1)
        trainer = psutil.Process(link.pid)
        (victim,) = others(link.pid)
        when_it_trains(mark, victim.kill)
        with pytest.raises(UserError) as caught:
            train(link, 2)
        assert "device process 2 of 2 (cpu) was ended by SIGKILL" in caught.value.public
        third = train(link, 3)
        assert trainer.pid != link.pid and not psutil.wait_procs([trainer, victim], GONE)[1]

        (orphan,) = others(link.pid)
        os.kill(link.pid, signal.SIGKILL)
        assert not psutil.wait_procs([orphan], GONE)[1], "it ends with its trainer"

    undisturbed = build_worker(place_of(tmp_path / "one", data_root), TRAIN, meta_of(SETTINGS, 1))
    train(undisturbed, 1)
    assert far(train(undisturbed, 3).tracks, third.tracks) < SAME
