"""Scores and best rounds, by hand."""

import pytest

from fedsm.server.record import RunRecord
from fedsm.tracks import server_tracks
from fedsm.tracks.base import DELIVER
from tests.helpers.small_jobs import SITES, small_settings


def reports(scores: dict[str, float]) -> dict:
    """The sites' reports on the global and their personal model; 10, 30 and 60 validation images."""
    images = dict(zip(SITES, (10, 30, 60), strict=True))
    report = {s: {"score": v, "images": images[s]} for s, v in scores.items()}
    return {s: {"global": report[s], "personal": report[s]} for s in scores}


@pytest.fixture
def record():
    record = RunRecord("run", SITES)
    record.tracks = server_tracks(small_settings(), SITES)
    return record


def add(record, number: int, **scores) -> None:
    record.add_round(number, {}, {}, 1.0)
    record.add_validation(number, record.tracks, reports({s.replace("_", "-"): v for s, v in scores.items()}))


def test_pooled_score_and_own_score(record):
    """Global: (10 * 0.5 + 30 * 0.9 + 60 * 0.6) / 100 = 0.68. Personal: each its own; their mean is 0.6667."""
    add(record, 1, site_1=0.5, site_2=0.9, site_3=0.6)
    assert record.history[0]["score"]["global"] == pytest.approx(0.68)
    assert record.history[0]["score"]["personal"] == pytest.approx(2.0 / 3)
    assert record.best["global"]["score"] == pytest.approx(0.68)
    assert record.best["personal.site-2"]["score"] == 0.9


def test_best_is_the_first_of_the_highest(record):
    for number, value in enumerate((0.5, 0.7, 0.7, 0.6), start=1):
        add(record, number, site_1=value, site_2=value, site_3=value)
    assert record.best["global"]["round"] == 2
    assert record.best["global"]["file"] == "r000002.global.safetensors"


def test_a_round_without_the_difficult_site_is_not_the_best_for_that(record):
    """Without site 3 (0.2) the mean of round 2 looks better (0.6 against 0.35) though nothing has improved."""
    add(record, 1, site_1=0.6, site_2=0.6, site_3=0.2)
    add(record, 2, site_1=0.6, site_2=0.6)
    assert record.best["global"]["round"] == 1
    add(record, 3, site_1=0.7, site_2=0.7)
    assert record.best["global"]["round"] == 3, "better on the sites that judged both"


def test_a_missing_site_keeps_the_best_of_its_personal_model(record):
    add(record, 1, site_1=0.6, site_2=0.6, site_3=0.2)
    add(record, 2, site_1=0.7, site_2=0.7)
    assert record.best["personal.site-3"]["round"] == 1
    assert record.best["personal.site-1"]["round"] == 2


def test_a_network_that_stays_at_its_site_was_made_in_the_round_that_it_was_best_in():
    """Site 1 has 0.8 after round 2 and 0.6 after round 3, hands the one of 0.8 over, and scores it again."""
    record = RunRecord("run", SITES)
    record.tracks = server_tracks(small_settings(method="local"), SITES)
    add(record, 1, site_1=0.5, site_2=0.1)
    add(record, 2, site_1=0.8, site_2=0.2)
    record.add_round(3, {}, {}, 1.0)
    template = record.tracks["personal"].expects(DELIVER)
    for site in SITES[:2]:
        record.tracks["personal"].accept(DELIVER, site, template)
    record.add_validation(3, record.tracks, reports({"site-1": 0.8, "site-2": 0.3}), delivered=True)
    assert [record.best[f"personal.{s}"]["round"] for s in SITES[:2]] == [2, 3]
    assert record.best["personal.site-1"]["file"] == "r000003.personal.site-1.safetensors", "where it lies"


class TestFraction:
    """With `fraction` other sites score every round."""

    @pytest.fixture
    def sampled(self):
        record = RunRecord("run", SITES)
        record.tracks = server_tracks(small_settings(lam=0.7).replace(fraction=0.5), SITES)
        return record

    def test_rounds_are_compared_by_each_site_with_itself(self, sampled):
        """Site 3 is easy (0.9 in round 1). Round 2: sites 1 and 2 link nothing, the later is taken. Round 3: site 3 has
        0.85, site 1 has 0.55, 0.05 more than in round 2, so round 3 is better by 0.05, whatever site 3 had in round 1.
        Round 4: only site 3, 0.8: lower by 0.05 than round 3, though its score is the highest of the best round's."""
        add(sampled, 1, site_3=0.9)
        add(sampled, 2, site_1=0.5, site_2=0.3)
        assert sampled.best["global"]["round"] == 2
        add(sampled, 3, site_1=0.55, site_3=0.85)
        assert sampled.best["global"]["round"] == 3
        add(sampled, 4, site_3=0.8)
        assert sampled.best["global"]["round"] == 3

    def test_a_round_of_easy_sites_is_not_the_best_for_that(self, sampled):
        """Rounds 1 and 2 share no site, round 3 links them: it is 0.1 below round 2 by sites 1 and 2, and 0.2 above
        round 1 by site 3. In round 4 site 3 has 0.65: 0.05 above round 3, so 0.05 below round 2. In round 5
        it has 0.75, so 0.05 above round 2."""
        add(sampled, 1, site_3=0.4)
        add(sampled, 2, site_1=0.5, site_2=0.3)
        add(sampled, 3, site_1=0.4, site_2=0.2, site_3=0.6)
        assert sampled.best["global"]["round"] == 2
        add(sampled, 4, site_3=0.65)
        assert sampled.best["global"]["round"] == 2
        add(sampled, 5, site_3=0.75)
        assert sampled.best["global"]["round"] == 5

    def test_the_first_weights_count_as_round_0(self, sampled):
        sampled.add_validation(0, sampled.tracks, reports({"site-1": 0.9}))
        add(sampled, 1, site_1=0.8)
        assert sampled.best["global"]["round"] == 0

    def test_a_personal_model_is_compared_with_itself(self, sampled):
        add(sampled, 1, site_1=0.6, site_2=0.6)
        add(sampled, 2, site_3=0.9)
        add(sampled, 3, site_1=0.5, site_2=0.7)
        assert [sampled.best[f"personal.{site}"]["round"] for site in SITES] == [1, 3, 2]
