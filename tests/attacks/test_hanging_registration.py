"""A site that fetches the registration and never answers it was waited for the whole timeout before every round: it is
asked alone then, and nobody else's time was the measure."""

import time

from fedsm.server.patience import Patience
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, REGISTER
from tests.helpers.small_jobs import SITES, small_settings


def test_a_site_that_never_registers_costs_the_timeout_once(tmp_path, data_root):
    def hang(site, task, shareable, work):
        return None if site.name == HOSTILE and task == REGISTER else work()

    settings = small_settings(rounds=4, round_timeout=12, absent_wait=1, method="fedavg")
    started = time.monotonic()
    federation = Federation(tmp_path, data_root, settings, SITES, fault=hang).run()
    assert federation.panic is None
    assert all(set(row["missing"]) == {HOSTILE} for row in results_of(federation)["validation"]["history"])
    assert time.monotonic() - started < 50, (
        "12 s once, not before each of four rounds too: that was 60 s of waiting alone"
    )


def test_seconds_of_sites_that_are_asked_alone():
    """Timeout 3600; the slowest trusted site took 100 s the last time. After one miss 3600 / 16, after two 2 * 100."""
    patience = Patience(absent_wait=10)
    patience.note_others(100.0)
    patience.note("a", None)
    assert patience.seconds("a", 3600, patience.others) == 225
    patience.note("a", None)
    assert patience.seconds("a", 3600, patience.others) == 200
