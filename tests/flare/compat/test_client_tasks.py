"""Workaround: `fedsm.flare.compat.client_tasks`.

Symptom: several tasks stand at once, a client fetches again because the reply was lost, and the job hangs for ever:
the task's record holds the client twice, the monitor thread dies of a KeyError, and no timeout is looked at any more.
FLARE 2.9.0. With the workaround: `tests/flare/test_faults.py`.
"""

import threading

import pytest

from fedsm.flare import exchange
from fedsm.flare.compat.client_tasks import ClientTasks
from tests.helpers.federation import Federation
from tests.helpers.small_jobs import SITES, small_settings


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_with_a_plain_list_a_second_fetch_ends_flares_monitor(tmp_path, data_root, monkeypatch):
    monkeypatch.setattr(ClientTasks, "append", list.append)

    def fetch_twice(site, task, shareable, work):
        if site.name == "site-1" and task == exchange.TRAIN:
            site.fetch()
        return work()

    federation = Federation(tmp_path, data_root, small_settings(rounds=1), SITES, fault=fetch_twice)
    job = threading.Thread(target=federation.run, daemon=True)
    job.start()
    while not (monitor := getattr(federation.server, "_task_monitor", None)) or not monitor.ident:
        job.join(0.01)
    monitor.join(600)
    assert not monitor.is_alive() and not federation.done.is_set(), "the job goes on, and nobody watches its tasks"
    federation.abort.trigger(True)
    job.join(600)
    assert not job.is_alive()
