"""Row 13: `statistics_privacy` counted its releases and never stopped."""

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedsm.client.workers import build_worker
from fedsm.core.task_names import REGISTER
from fedsm.selectors.private_sums import PrivateSums, StatisticsPrivacy
from tests.helpers.descriptors import rows_of
from tests.helpers.hostile_server import SITE, meta_of, real_site, refusal, register, same
from tests.helpers.small_jobs import small_settings, write_site

ONE = {"epsilon": 1.0, "delta": "1e-5"}


@pytest.fixture
def data(tmp_path):
    write_site(tmp_path / "data", 12, 0)
    return tmp_path / "data"


def job(**given):
    return small_settings(selector="statistics", **given)


def test_jobs_cannot_draw_noise_again(tmp_path, data):
    """Jobs with other seeds and batches get the same sums; of other image sizes, which need new ones, none."""
    place = real_site(tmp_path / "site", data, statistics_privacy=ONE)
    sent = register(place, job())
    for number in range(10):
        assert same(sent, register(place, job(seed=number, batch_size=1 + number), run=number))
    answers = [refusal(place, job(size=40 + number), run=100 + number) for number in range(20)]
    assert all("raise `budget` of statistics_privacy" in str(answer) for answer in answers)
    assert all("epsilon 1 of 1" in answer.public and str(tmp_path) not in answer.public for answer in answers)
    assert same(sent, register(place, job())), "what was sent may be sent again"


def test_a_budget_of_three_is_three_releases(tmp_path, data):
    place = real_site(tmp_path / "site", data, statistics_privacy=ONE | {"budget": 3})
    assert [refusal(place, job(size=s)) is None for s in (32, 40, 48, 56, 64)] == [True] * 3 + [False] * 2
    worker = build_worker(place, REGISTER, meta_of(job()))
    told = worker.do(REGISTER, meta_of(job()), {}, lambda: False).meta["privacy"]
    assert (told["releases"], told["budget"]) == (3, 3.0)
    kept = tmp_path / "site" / "fedsm_state" / SITE / "statistics_privacy"
    assert {stat.S_IMODE(p.stat().st_mode) for p in kept.glob("*.safetensors")} == {0o600}
    for sums in kept.glob("*.safetensors"):
        sums.write_bytes(b"")
    assert refusal(place, job(size=64)), "a damaged file is still a release"
    assert "restore it" in str(refusal(place, job()))


def test_a_smaller_epsilon_later_adds_to_what_was_spent(tmp_path):
    rows = rows_of(30)
    PrivateSums(StatisticsPrivacy(2.0, 1e-5, budget=2.5), tmp_path)(rows, 3)
    for number in range(5):
        PrivateSums(StatisticsPrivacy(0.1, 1e-5, budget=2.5), tmp_path)(rows + number, 3)
    with pytest.raises(Exception, match=r"epsilon 2.5 of 2.5"):
        PrivateSums(StatisticsPrivacy(0.1, 1e-5, budget=2.5), tmp_path)(rows + 5, 3)


def test_threads_at_once_cannot_spend_it_twice(tmp_path):
    def release(number: int) -> bool:
        try:
            PrivateSums(StatisticsPrivacy(1.0, 1e-5, budget=2.0), tmp_path)(rows_of(30, seed=number), 3)
        except Exception:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(release, range(16))) == 2


def test_a_second_process_waits_for_the_first(tmp_path):
    """The first holds the lock of the folder; the second releases only when it has ended."""
    program = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(1)\n"
        "open(sys.argv[1] + '.done', 'w')\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    PrivateSums(StatisticsPrivacy(1.0, 1e-5), tmp_path)(rows_of(30), 3)
    assert (tmp_path / "lock.done").is_file() and holder.wait(600) == 0
