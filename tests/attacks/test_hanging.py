"""Row 15: a site that fetches its tasks and never answers cost the full timeout in every round."""

import time

import pytest

from fedsm.server.patience import Patience
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, TRAIN
from tests.helpers.small_jobs import SITES, small_settings


def test_a_site_that_hangs_costs_the_timeout_once(tmp_path, data_root):
    """The timeout is 12 s and the site hangs in all of six rounds: 72 s before."""

    def hang(site, task, shareable, work):
        return None if site.name == HOSTILE and task == TRAIN else work()

    settings = small_settings(rounds=6, round_timeout=12, absent_wait=1)
    started = time.monotonic()
    federation = Federation(tmp_path, data_root, settings, SITES, fault=hang).run()
    assert federation.panic is None
    history = results_of(federation)["validation"]["history"]
    assert all(set(row["missing"]) == {HOSTILE} for row in history)
    slow = [row["seconds"] for row in history if row["seconds"] > 11]
    assert len(slow) == 1, [row["seconds"] for row in history]
    assert time.monotonic() - started < 66
    assert "none to its last task either" in history[-1]["missing"][HOSTILE]


def test_seconds_by_hand():
    """Timeout 3600, the others took 60 s, the site itself 100 s when it last answered.

    One miss (m = 2): max(10, 120, 3600 / 16 = 225, 200) = 225. Two (m = 4): max(10, 120, 14) = 120. An answer then
    (m = 3, a chance again): max(10, 120, 56.25, 200) = 200. Two more answers (m = 1): 900. One more: trusted, 3600."""
    patience = Patience(absent_wait=10)
    patience.note("a", 100.0)
    assert patience.trusts("a") and patience.seconds("a", 3600, 60) == 3600
    patience.note("a", None)
    assert patience.seconds("a", 3600, 60) == 225
    assert patience.seconds("a", 3600, None) == 3600, "while the others are at work, nobody waits for this one"
    patience.note("a", None)
    assert patience.seconds("a", 3600, 60) == 120
    patience.note("a", 100.0)
    assert patience.seconds("a", 3600, 60) == 200
    patience.note("a", 100.0)
    patience.note("a", 100.0)
    assert patience.seconds("a", 3600, 60) == 900
    patience.note("a", 100.0)
    assert patience.trusts("a")


def test_answering_every_second_task_does_not_keep_the_long_wait():
    patience = Patience(absent_wait=10)
    waits = []
    for _ in range(6):
        patience.note("a", None)
        patience.note("a", 5.0)
        waits.append(patience.seconds("a", 3600, 60))
    assert waits == pytest.approx([900, 225, 120, 120, 120, 120])


def test_an_honest_slow_site_has_its_own_time_again_after_ten_misses():
    patience = Patience(absent_wait=10)
    patience.note("a", 1000.0)
    waits = []
    for _ in range(11):
        patience.note("a", None)
        waits.append(patience.seconds("a", 3600, 60))
    assert waits[0] == 2000 and waits[1:9] == [120] * 8 and waits[9] == 2000
