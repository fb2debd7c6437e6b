"""The trainer in a process of its own: the same numbers, and what its death costs."""

import logging
import os
import resource
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import torch

from fedsm.client import trainer_link
from fedsm.client.trainer_link import TrainerLink, oom_kills
from fedsm.client.work import Aborted
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.task_names import EVALUATE, REGISTER, TASKS, TRAIN, VALIDATE
from tests.helpers.small_site import same
from tests.helpers.trainer_site import GO_ON, faulty, link_to, meta_of, payload_of, place_of, small_job, when_it_trains

SETTINGS = small_job()


@pytest.fixture(scope="module")
def mark(tmp_path_factory):
    return tmp_path_factory.mktemp("mark") / "trains"


@pytest.fixture(scope="module")
def kept(tmp_path_factory, data_root, mark):
    """One link for the tests to which it does not matter what was before: starting a process takes seconds."""
    with link_to(place_of(tmp_path_factory.mktemp("site"), data_root), faulty("waits", mark)) as link:
        yield link


@pytest.fixture
def link(kept, mark):
    """The same, with a living process."""
    mark.unlink(missing_ok=True)
    train(kept, 1)
    return kept


def train(link: TrainerLink, number: int, settings=SETTINGS, aborted=GO_ON):
    return link.do(TRAIN, meta_of(settings, number), payload_of(settings, number), aborted)


def assert_same(a, b) -> None:
    assert (a.meta, a.sums) == (b.meta, b.sums)
    assert a.tracks.keys() == b.tracks.keys()
    for name in a.tracks:
        assert same(a.tracks[name], b.tracks[name]), name


@pytest.mark.parametrize(
    "selector",
    [pytest.param("gradient", marks=pytest.mark.slow), pytest.param("statistics", marks=pytest.mark.process)],
)
def test_every_task_gives_bit_for_bit_what_it_gives_inside(tmp_path, data_root, selector):
    settings = small_job(selector=selector)
    inside = build_worker(place_of(tmp_path / "inside", data_root), REGISTER, meta_of(settings, 1))

    def payload(task: str, number: int) -> dict:
        made = payload_of(settings, number)
        return {"global": made["global"]} if task == EVALUATE else made

    with link_to(place_of(tmp_path / "process", data_root)) as link:
        pids = set()
        tasks = [(REGISTER, 0, {}), (TRAIN, 1, {}), (TRAIN, 2, {}), (VALIDATE, 2, {})]
        tasks += [(EVALUATE, 2, {"part": part}) for part in ("validation", "test")]
        for task, number, more in tasks:
            meta = meta_of(settings, number) | more
            expected = inside.do(task, meta, payload(task, number), GO_ON)
            assert_same(link.do(task, meta, payload(task, number), GO_ON), expected)
            pids.add(link.pid)
        assert len(pids) == 1, "it lives across tasks"
    assert {REGISTER, TRAIN, VALIDATE, EVALUATE} == set(TASKS)


@pytest.mark.process
def test_kill_9_is_reported_and_the_next_round_goes_on_from_disk(tmp_path, data_root):
    mark = tmp_path / "trains"
    with link_to(place_of(tmp_path / "killed", data_root), faulty("waits", mark)) as link:
        train(link, 1)
        killed = link.pid
        when_it_trains(mark, lambda: os.kill(killed, signal.SIGKILL))
        with pytest.raises(UserError) as caught:
            train(link, 2)
        assert "was ended by SIGKILL" in caught.value.public and "fedsm_train of round 2" in caught.value.public
        third = train(link, 3)
        assert link.pid != killed and not psutil.pid_exists(killed)

    undisturbed = build_worker(place_of(tmp_path / "undisturbed", data_root), TRAIN, meta_of(SETTINGS, 1))
    train(undisturbed, 1)
    assert_same(third, train(undisturbed, 3))


@pytest.mark.process
def test_a_segmentation_fault_is_named_and_its_last_lines_stay_at_the_site(tmp_path, data_root, caplog):
    caplog.set_level(logging.INFO)
    command = faulty("segfault", tmp_path / "trains")
    with link_to(place_of(tmp_path, data_root), command) as link, pytest.raises(UserError) as caught:
        train(link, 2)
    assert "was ended by SIGSEGV" in caught.value.public
    assert "faulty_trainer.py" in str(caught.value), "the Python stack at the fault"
    assert "File" not in caught.value.public and str(tmp_path) not in caught.value.public
    assert "Fatal Python error: Segmentation fault" in caplog.text, "the whole of it in the site's log"
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], "kits stream errors to the server"


@pytest.mark.process
def test_a_user_error_passes_whole_and_the_process_stays(link):
    first = link.pid
    broken = payload_of(SETTINGS, 1)
    for tensor in broken["personal"].values():
        tensor.fill_(float("nan"))
    with pytest.raises(UserError, match="site 'site-2': training diverged in round 1") as caught:
        link.do(TRAIN, meta_of(SETTINGS, 1), broken, GO_ON)
    assert caught.value.public.startswith("training diverged in round 1")
    train(link, 1)
    assert link.pid == first


@pytest.mark.process
def test_abort_stops_at_the_next_batch_and_keeps_the_process(link, mark):
    first = link.pid
    with pytest.raises(Aborted):
        train(link, 2, aborted=mark.exists)
    train(link, 3)
    assert link.pid == first


@pytest.mark.process
def test_a_bug_is_public_by_its_type_only_and_ends_the_process(link):
    first, payload = link.pid, payload_of(SETTINGS, 1)
    payload["global"].popitem()
    with pytest.raises(UserError, match="Traceback") as caught:
        link.do(TRAIN, meta_of(SETTINGS, 1), payload, GO_ON)
    assert caught.value.public.isidentifier()
    assert not psutil.pid_exists(first), "nobody knows what state it is in"


@pytest.mark.process
def test_a_new_task_does_not_wait_for_an_older_one(link, mark):
    first, caught = link.pid, []

    def old():
        try:
            train(link, 2)
        except UserError as e:
            caught.append(e)

    thread = threading.Thread(target=old)
    thread.start()
    when_it_trains(mark, lambda: None).join(600)
    train(link, 3)
    thread.join(600)
    assert caught and not psutil.pid_exists(first)


@pytest.mark.process
def test_out_of_memory_is_said_so_and_ends_the_process(link):
    first = link.pid
    size = psutil.Process(first).memory_info().vms
    resource.prlimit(first, resource.RLIMIT_AS, (size, size))
    payload = payload_of(SETTINGS, 3) | {"global": {"large": torch.zeros(60_000_000)}}
    with pytest.raises(UserError, match="out of memory") as caught:
        link.do(TRAIN, meta_of(SETTINGS, 3), payload, GO_ON)
    assert "out of memory" in caught.value.public
    assert not psutil.pid_exists(first)


@pytest.mark.process
@pytest.mark.parametrize(("aborted", "error"), [(lambda: True, Aborted), (GO_ON, UserError)])
def test_a_hanging_process_is_killed_after_the_grace_period_or_at_the_deadline(link, monkeypatch, aborted, error):
    monkeypatch.setattr(trainer_link, "GRACE", 0.5)
    os.kill(link.pid, signal.SIGSTOP)
    with pytest.raises(error) as caught:
        train(link, 3, small_job(round_timeout=1), aborted)
    assert not psutil.pid_exists(link.pid)
    assert error is Aborted or "not done within the 1 s" in caught.value.public


@pytest.mark.process
def test_the_process_ends_with_its_parent(tmp_path, data_root):
    """The parent is killed by SIGKILL while the child trains: nobody is left."""
    place, mark = place_of(tmp_path, data_root), tmp_path / "trains"
    code = (
        "from tests.helpers.trainer_site import *\n"
        f"link = TrainerLink(SiteLocation(*{tuple(place)!r}), faulty('waits', {str(mark)!r}))\n"
        f"when_it_trains(Path({str(mark)!r}), lambda: print(link.pid, flush=True))\n"
        "link.do('fedsm_train', meta_of(small_job(), 2), payload_of(small_job(), 2), GO_ON)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.communicate()
    child.wait(timeout=600)
    assert not child.is_running()


@pytest.mark.process
def test_a_process_that_cannot_start_says_why(tmp_path, data_root):
    command, words = (sys.executable, "-c", "import no_such_module"), "No module named 'no_such_module'"
    with link_to(place_of(tmp_path, data_root), command) as link, pytest.raises(UserError, match=words) as caught:
        link.do(REGISTER, meta_of(SETTINGS, 0), {}, GO_ON)
    assert "ended with exit code 1" in caught.value.public


@pytest.mark.process
def test_code_that_came_with_the_job_is_found(tmp_path, data_root, monkeypatch):
    """FLARE puts a job's code (BYOC) on its own process's path only."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "came_with_the_job.py").write_text("raise SystemExit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    command = (sys.executable, "-P", "-c", "import came_with_the_job")
    with link_to(place_of(tmp_path, data_root), command) as link, pytest.raises(UserError, match="exit code 7"):
        link.do(REGISTER, meta_of(SETTINGS, 0), {}, GO_ON)


@pytest.mark.process
def test_the_trainer_process_does_not_load_nvflare():
    code = "import sys, fedsm.client.trainer_process; sys.exit('nvflare' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_kills_of_the_memory_limit_are_counted(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.events").write_text("low 0\nmax 3\noom 1\noom_kill 2\n")
    (tmp_path / "mine").write_text("0::/job\n")
    assert oom_kills(str(tmp_path), str(tmp_path / "mine")) == 2
    assert oom_kills(str(tmp_path), str(tmp_path / "none")) == 0
