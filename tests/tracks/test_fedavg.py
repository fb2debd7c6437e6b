"""FedAvg on numbers small enough to do by hand."""

import torch

from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import SITES, small_settings


def make_track(value: float = 1.0):
    track = server_tracks(small_settings(), SITES)["global"]
    track.load_files({"global": {"w": torch.tensor([value, value])}})
    return track


def test_weighted_by_images():
    """w = 1; sites with 10, 30 and 60 images change it by +1, -1 and +2.

    w <- 1 + (10 * 1 + 30 * -1 + 60 * 2) / 100 = 1 + 1.0 = 2.0
    """
    track = make_track()
    for site, n, change in zip(SITES, (10, 30, 60), (1.0, -1.0, 2.0), strict=True):
        track.accept(TRAIN, site, {"w": torch.full((2,), change)}, n)
    track.close(TRAIN)
    assert torch.allclose(track.weights["w"], torch.tensor([2.0, 2.0]))


def test_missing_site_is_renormalised():
    """Without the third site: w <- 1 + (10 * 1 + 30 * -1) / 40 = 0.5."""
    track = make_track()
    for site, n, change in zip(SITES[:2], (10, 30), (1.0, -1.0), strict=True):
        track.accept(TRAIN, site, {"w": torch.full((2,), change)}, n)
    track.close(TRAIN)
    assert torch.allclose(track.weights["w"], torch.tensor([0.5, 0.5]))


def test_no_answer_keeps_the_model_and_the_next_round_starts_afresh():
    track = make_track()
    track.close(TRAIN)
    assert track.weights["w"].tolist() == [1.0, 1.0]
    track.accept(TRAIN, SITES[0], {"w": torch.ones(2)}, 5)
    track.close(TRAIN)
    track.close(TRAIN)
    assert track.weights["w"].tolist() == [2.0, 2.0]


def test_same_seed_same_start_and_personal_starts_as_global():
    one, two = (server_tracks(small_settings(seed=3), SITES) for _ in range(2))
    other = server_tracks(small_settings(seed=4), SITES)
    key = next(iter(one["global"].weights))
    assert torch.equal(one["global"].weights[key], two["global"].weights[key])
    assert not torch.equal(one["global"].weights[key], other["global"].weights[key])
    for site in SITES:
        assert torch.equal(one["personal"].weights[site][key], one["global"].weights[key])


def test_rounds_share_memory_only_when_every_site_has_answered():
    """Everybody answered round 1: its old model is summed into. Round 2 lacks a site, which may still be reading the
    model that went out: that one stays as it was."""
    track = make_track()
    for site in SITES:
        track.accept(TRAIN, site, {"w": torch.ones(2)}, 10)
    track.close(TRAIN)  # w = 1 + 1
    sent = track.weights["w"]
    for site in SITES[:2]:
        track.accept(TRAIN, site, {"w": torch.ones(2)}, 10)
    track.close(TRAIN)  # w = 2 + 1
    for site in SITES:
        track.accept(TRAIN, site, {"w": torch.full((2,), 4.0)}, 10)
    track.close(TRAIN)  # w = 3 + 4
    assert sent.tolist() == [2.0, 2.0]
    assert track.weights["w"].tolist() == [7.0, 7.0]
