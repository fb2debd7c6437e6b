"""What a site answers when it is asked to try shares, and what it refuses of a hostile server."""

import pytest
import torch

from fedsm.client.work import Aborted
from fedsm.client.workers import build_worker
from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_SHARES
from fedsm.core.personal_mix import MEAN, OWN
from fedsm.core.task_names import MIX
from tests.helpers.trainer_site import GO_ON, meta_of, payload_of, place_of, small_job

SETTINGS = small_job(personal_mix=[0.5])


@pytest.fixture
def site(tmp_path, data_root):
    return build_worker(place_of(tmp_path, data_root), MIX, meta_of(SETTINGS, 1))


def asked(settings=SETTINGS, **given) -> dict:
    return meta_of(settings, 1) | {"models": 3} | given


def models() -> dict:
    return {OWN: payload_of(SETTINGS, 1)["personal"], MEAN: payload_of(SETTINGS, 2)["personal"]}


def test_it_sends_a_number_for_each_share_and_nothing_else(site):
    answer = site.do(MIX, asked(), models(), GO_ON)
    assert answer.tracks == {} and answer.sums == []
    assert set(answer.meta) == {"round", "images", "mix"}
    assert len(answer.meta["mix"]) == 2 and all(isinstance(d, float) and 0 <= d <= 1 for d in answer.meta["mix"])


def test_own_and_mean_alike_give_the_same_score(site):
    same = models()[OWN]
    first, second = site.do(MIX, asked(), {OWN: same, MEAN: same}, GO_ON).meta["mix"]
    assert first == second


def test_an_abort_ends_it(site):
    with pytest.raises(Aborted):
        site.do(MIX, asked(), models(), lambda: True)


@pytest.mark.parametrize("count", [None, 0, 1, -3, 2.5, True, "3", 10**6])
def test_a_number_of_models_is_one(site, count):
    with pytest.raises(UserError, match="no shares to try, or no two models"):
        site.do(MIX, asked(models=count), models(), GO_ON)


def test_two_models_that_fit_and_no_others(site):
    for payload in ({}, {OWN: models()[OWN]}, models() | {"probe": models()[OWN]}):
        with pytest.raises(UserError, match="no two models"):
            site.do(MIX, asked(), payload, GO_ON)
    for mean in ({"other": torch.zeros(1)}, {k: torch.zeros(1) for k in models()[MEAN]}):
        with pytest.raises(UserError, match="do not fit each other"):
            site.do(MIX, asked(), {OWN: models()[OWN], MEAN: mean}, GO_ON)


def test_a_job_without_shares_is_not_asked_for_any(tmp_path, data_root):
    settings = small_job()
    site = build_worker(place_of(tmp_path, data_root), MIX, meta_of(settings, 1))
    with pytest.raises(UserError, match="no shares to try"):
        site.do(MIX, asked(settings), models(), GO_ON)


def test_shares_are_few():
    """Many close ones would tell which single image changes sides."""
    with pytest.raises(UserError, match="personal_mix must be a list of at most 8 numbers from 0 to 1"):
        small_job(personal_mix=[i / 1000 for i in range(MOST_SHARES + 1)])
