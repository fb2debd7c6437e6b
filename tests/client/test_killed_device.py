"""kill -9 of a device process, and of the trainer that started it: one round is lost, and nothing is left behind."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from fedsm.client.gpu_failures import GpuFailure
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import TRAIN
from tests.helpers.trainer_site import (
    GO_ON,
    faulty,
    furthest,
    link_to,
    make_trainer,
    meta_of,
    payload_of,
    place_of,
    small_job,
    when_it_trains,
)

SETTINGS = small_job(selector="statistics")
SAME = 1e-5
GONE = 600  # seconds at most


def train(worker, number: int):
    return worker.do(TRAIN, meta_of(SETTINGS, number), payload_of(SETTINGS, number), GO_ON)


def others(pid: int) -> list[psutil.Process]:
    """The device processes of a trainer."""
    return [p for p in psutil.Process(pid).children() if "fedsm.client.device_process" in p.cmdline()]


@pytest.mark.process
def test_kill_9_of_a_device_process_is_reported_and_the_next_round_goes_on_from_disk(tmp_path, data_root):
    two, one = (
        make_trainer(SETTINGS, tmp_path / str(count), data_root, device="cpu", devices=count) for count in (2, 1)
    )
    for trainer in (two, one):
        trainer.train(1, payload_of(SETTINGS, 1))
    victim = two.others._others[0].process

    def kills() -> bool:
        """Before the first batch: the other process is in its own step by then, or on its way there."""
        victim.kill()
        victim.wait(GONE)
        return False

    try:
        with pytest.raises(GpuFailure, match=r"device process 2 of 2 \(cpu\) was ended by SIGKILL"):
            two.train(2, payload_of(SETTINGS, 2), kills)
        assert not psutil.pid_exists(victim.pid) and two.others.pids == []
        third, alone = (t.train(3, payload_of(SETTINGS, 3))[0] for t in (two, one))
        assert furthest(alone, third) < SAME
    finally:
        two.others.end()


@pytest.mark.slow
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
    assert furthest(train(undisturbed, 3).tracks, third.tracks) < SAME
