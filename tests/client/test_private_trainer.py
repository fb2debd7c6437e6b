"""A trainer that is killed in a private round has paid for it, and its successor goes on from there."""

import os
import signal

import pytest
import yaml

from fedsm.client.privacy_ledger import PrivacyLedger
from fedsm.core.errors import UserError
from fedsm.core.task_names import TRAIN
from tests.helpers.trainer_site import (
    GO_ON,
    SITE,
    faulty,
    link_to,
    meta_of,
    payload_of,
    place_of,
    small_job,
    when_it_trains,
)

SETTINGS = small_job(method="fedavg", selector=None, rounds=2)


@pytest.mark.slow
def test_kill_9_in_a_round_costs_that_round(tmp_path, data_root):
    """Two rounds are planned and paid for: round 1, and the killed round 2. Asked for again, nothing is left."""
    place, mark = place_of(tmp_path / "site", data_root), tmp_path / "mark"
    dp = {"dp": {"epsilon": 3, "delta": 1e-2}}
    (tmp_path / "site" / "fedsm_site.yaml").write_text(yaml.safe_dump({"data_root": str(data_root), "threads": 1} | dp))
    ledger = PrivacyLedger(tmp_path / "site" / "fedsm_state" / SITE, SITE)

    def paid() -> int:
        return sum(steps.count for _, steps in ledger.history())

    with link_to(place, faulty("waits", mark)) as link:
        first = link.do(TRAIN, meta_of(SETTINGS, 1), payload_of(SETTINGS, 1), GO_ON)
        one_round = first.meta["dp"]["steps"]
        assert paid() == one_round and "losses" in first.meta and first.meta["losses"] == {}
        when_it_trains(mark, lambda: os.kill(link.pid, signal.SIGKILL))
        with pytest.raises(UserError, match="was ended by SIGKILL"):
            link.do(TRAIN, meta_of(SETTINGS, 2), payload_of(SETTINGS, 2), GO_ON)
    assert paid() == 2 * one_round
    with link_to(place) as link, pytest.raises(UserError, match="the site's privacy budget for all jobs is spent"):
        link.do(TRAIN, meta_of(SETTINGS, 2), payload_of(SETTINGS, 2), GO_ON)
    assert paid() == 2 * one_round
