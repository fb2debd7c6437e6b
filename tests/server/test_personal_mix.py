"""Mixing personal models after training, on numbers small enough to do by hand."""

import math

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.personal_mix import mixed, shares_of
from fedsm.server.personal_mix import PersonalMix
from fedsm.tracks import check_options
from tests.helpers.small_jobs import small_settings

SHARES = [0.0, 0.25, 0.5]


def model(value: float, steps: int = 0) -> dict:
    return {"w": torch.tensor([value]), "norm.weight": torch.tensor([10 * value]), "steps": torch.tensor(steps)}


def mix(held=frozenset(), shares=SHARES) -> PersonalMix:
    """Models 1, 2 and 6: their mean is 3."""
    return PersonalMix({"a": model(1.0, 1), "b": model(2.0, 2), "c": model(6.0, 3)}, held, shares)


def chosen(**shares: float) -> dict:
    return {site: {"share": shares.get(site, 0.0)} for site in "abc"}


def test_a_share_of_the_mean_of_the_others():
    """a = 0.25 for site a: 0.75 * 1 + 0.25 * (2 + 6) / 2 = 1.75; a = 0.5 for site c: 0.5 * 6 + 0.5 * 1.5 = 3.75.
    The same of the norm layer's entry, times ten; the counter stays the site's own. Site b keeps its model."""
    found = mix().mixed(chosen(a=0.25, c=0.5))
    assert set(found) == {"personal.a", "personal.c"}
    assert found["personal.a"]["w"].item() == pytest.approx(1.75)
    assert found["personal.a"]["norm.weight"].item() == pytest.approx(17.5)
    assert found["personal.a"]["steps"].item() == 1
    assert found["personal.c"]["w"].item() == pytest.approx(3.75)


def test_entries_that_are_held_stay_the_sites_own():
    made = mix(held={"norm.weight"})
    assert set(made.mean) == {"w"}, "and are not sent, either"
    assert made.mixed(chosen(a=0.25))["personal.a"]["norm.weight"].item() == 10.0


def test_limits():
    """a = 0 is the site's own model to the bit, a = 1 the mean of the others: (2 + 6) / 2 = 4; of two models, the
    other. The originals are not touched."""
    own, made = {"w": torch.tensor([0.1])}, mix()
    assert torch.equal(mixed(own, {"w": torch.tensor([0.7])}, 0.0, 3)["w"], own["w"])
    assert made.mixed(chosen(a=1.0))["personal.a"]["w"].item() == pytest.approx(4.0)
    assert made.models["a"]["w"].item() == 1.0
    two = PersonalMix({"a": model(1.0), "b": model(5.0)}, frozenset(), SHARES)
    assert two.mixed({"a": {"share": 1.0}, "b": {"share": 0.0}})["personal.a"]["w"].item() == 5.0


def test_a_variance_stays_one():
    """Rounding must not make a running variance negative: its root would be NaN."""
    found = mixed({"bn.running_var": torch.tensor([1e-30])}, {"bn.running_var": torch.tensor([0.0])}, 1.0, 3)
    assert found["bn.running_var"].item() >= 0


def test_the_best_share_and_the_smallest_of_equals():
    assert mix().choice([0.5, 0.75, 0.625])["share"] == 0.25
    assert mix().choice([0.5, 0.75, 0.75])["share"] == 0.25
    assert mix().choice([0.75, 0.75, 0.75])["share"] == 0.0, "its own model"
    assert mix().choice([0.5, 0.5 + 1e-15, 0.5])["share"] == 0.0
    curve = mix().choice([0.5, 0.75, 0.625])["curve"]
    assert curve == [{"share": a, "dice": d} for a, d in zip(SHARES, (0.5, 0.75, 0.625), strict=True)]


def test_without_an_answer_a_site_keeps_its_own():
    assert mix().choice(None) == {"share": 0.0, "curve": []}


@pytest.mark.parametrize(
    "scores",
    [None, 0.5, "0.5", [], [0.5, 0.5], [0.5] * 4, [0.5, 0.5, math.nan], [0.5, 0.5, math.inf], [0.5, 0.5, 1.01],
     [0.5, 0.5, -0.1], [0.5, 0.5, "1"], [0.5, 0.5, True], [0.5, 0.5, None], {0: 0.5, 1: 0.5, 2: 0.5}],
)  # fmt: skip
def test_what_is_no_curve_is_refused(scores):
    assert "personal_mix" in mix().problem(scores)
    assert mix().problem([0.0, 0.5, 1.0]) is None


def test_shares_are_tried_in_order_and_0_always():
    assert shares_of(small_settings()) == []
    assert shares_of(small_settings(personal_mix=[0.5, 0.1, 0.5])) == [0.0, 0.1, 0.5]


def test_it_is_refused_where_it_means_nothing():
    for method, words in (("fedavg", "has none"), ("fedsm-extra", "learnt about"), ("fedsm-ensemble", "learnt about")):
        with pytest.raises(UserError, match=words):
            check_options(small_settings(method=method, rounds=60, personal_mix=[0.1]))
    for good in ({}, {"personal": "ditto"}, {"method": "local"}):
        check_options(small_settings(personal_mix=[0.1], **good))
    for shares in ([1.5], [-0.1], ["a"], [i / 20 for i in range(20)]):
        with pytest.raises(UserError, match="personal_mix"):
            small_settings(personal_mix=shares)
