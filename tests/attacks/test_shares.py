"""Rows 6 and 19: image counts buy averages, reports buy the best round, gamma and the shrinkage."""

import pytest
import torch

from fedsm.core.shares import bounded_shares, trimmed_mean
from fedsm.server.policy_choice import choose_gamma
from fedsm.server.record import RunRecord
from fedsm.tracks import server_tracks
from fedsm.tracks.base import DELIVER, TRAIN
from tests.helpers.federation import Federation, results_of
from tests.helpers.hostile import HOSTILE, meta_of
from tests.helpers.small_jobs import SITES, small_settings

SIX = [f"site-{i + 1}" for i in range(6)]


def test_shares_by_hand():
    """Counts 10, 20, 30, 10**6: the median is 25, so the last one weighs 50; the others weigh what they have."""
    counts = {"a": 10, "b": 20, "c": 30, "d": 10**6}
    assert bounded_shares(counts, 2.0) == {"a": 10, "b": 20, "c": 30, "d": 50.0}
    assert bounded_shares({"a": 10, "b": 10**6}, 2.0) == {"a": 10, "b": 20.0}, "of two, the smaller is the measure"
    assert bounded_shares({}, 2.0) == {}


def test_trimmed_mean_by_hand():
    """Of four the middle two, of six the middle four, of eight the middle four; of three the plain mean."""
    assert trimmed_mean([0.0, 1.0, 3.0, 100.0]) == 2.0
    assert trimmed_mean([-9.0, 1.0, 2.0, 3.0, 4.0, 100.0]) == 2.5
    assert trimmed_mean([-9.0, -8.0, 1.0, 2.0, 3.0, 4.0, 99.0, 100.0]) == 2.5
    assert trimmed_mean([1.0, 2.0, 6.0]) == 3.0


def test_a_million_claimed_images_weigh_twice_the_median(tmp_path, data_root):
    """Site 3 claims 10**6 training images. Its update weighs 2 x median(8, 6, 10**6) = 16, and a person is told."""

    def claim(site, task, shareable, work):
        result = work()
        if site.name == HOSTILE and "images" in meta_of(result):
            meta_of(result)["images"]["train"] = 10**6
        return result

    settings = small_settings(rounds=1, method="fedavg")
    federation = Federation(tmp_path, data_root, settings, SITES, fault=claim).run()
    assert federation.aggregator.registry.shares() == {"site-1": 8, "site-2": 6, "site-3": 16.0}
    (entry,) = results_of(federation)["warned"]
    assert entry["site"] == HOSTILE and "it weighs as 16 in averages" in entry["reason"]


def test_honest_counts_are_what_they_were(tmp_path, data_root):
    federation = Federation(tmp_path, data_root, small_settings(rounds=1, method="fedavg"), SITES).run()
    assert federation.aggregator.registry.shares() == {"site-1": 8, "site-2": 6, "site-3": 10}
    assert results_of(federation)["warned"] == []


@pytest.fixture
def tracks():
    return server_tracks(small_settings(), SIX)


def reports(scores: list[float], images: dict[int, int] | None = None) -> dict:
    counts = [4 if not images else images.get(k, 4) for k in range(6)]
    return {s: {"global": {"score": v, "images": n}} for s, v, n in zip(SIX, scores, counts, strict=True)}


@pytest.mark.parametrize("images", [4, 10**6], ids=["honest_count", "claimed_count"])
def test_one_site_cannot_choose_the_best_round(tracks, images):
    """Five sites go up from 0.30 to 0.32; the sixth says 1.0 for round 1 and 0.0 for round 2: more than all of theirs
    together, with any number of images."""
    record = RunRecord("0" * 12, SIX)
    for number, honest, forged in ((1, 0.30, 1.0), (2, 0.32, 0.0)):
        record.add_round(number, {}, {}, 1.0)
        record.add_validation(number, tracks, reports([honest] * 5 + [forged], {5: images}))
    assert record.best["global"]["round"] == 2


@pytest.mark.parametrize("images", [4, 10**6], ids=["honest_count", "claimed_count"])
def test_one_site_cannot_choose_gamma(images):
    """Five sites lose 0.1 when gamma is 1; the sixth says that it gains 1, with any number of images."""
    gammas = [0.0, 0.5, 1.0]

    def answer(curve, images):
        rows = [{"gamma": g, "dice": {"disc": v}} for g, v in zip(gammas, curve, strict=True)]
        return {"images": images, "gammas": rows}

    honest = {site: answer((0.8 + k / 100, 0.79 + k / 100, 0.7 + k / 100), 4) for k, site in enumerate(SIX[:5])}
    assert choose_gamma(honest, gammas) == 0.0
    assert choose_gamma(honest | {"site-6": answer((0.0, 0.0, 1.0), images)}, gammas) == 0.0


@pytest.mark.parametrize("images", [4, 10**6], ids=["honest_count", "claimed_count"])
def test_one_site_cannot_choose_the_shrinkage(images):
    """Five sites are best at 0.05; the sixth says that only 0.1 works."""
    selector = server_tracks(small_settings(selector="statistics"), SIX)["selector"]
    told = {site: {"accuracies": [0.8, 0.9, 0.85], "images": 4} for site in SIX[:5]}
    selector.close(DELIVER, told | {"site-6": {"accuracies": [0.0, 0.0, 1.0], "images": images}})
    assert selector.shrinkage == pytest.approx(0.05)


def test_the_weight_in_fedavg_by_hand(tracks):
    """Updates of 1 and 4 with shares 8 and 16: (8 + 64) / 24 = 3."""
    track = tracks["global"]
    before = {k: v.clone() for k, v in track.weights.items()}
    for site, value, share in (("site-1", 1.0, 8), ("site-2", 4.0, 16.0)):
        track.accept(TRAIN, site, {k: torch.full_like(v, value) for k, v in before.items()}, share)
    track.close(TRAIN)
    assert all(torch.allclose(track.weights[k], v + 3) for k, v in before.items() if v.is_floating_point())
