"""SoftPull on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.tracks import pull_in_place, server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import SITES, small_settings


def make_track(lam: float, values=(0.0, 0.0, 0.0), steps: bool = False):
    track = server_tracks(small_settings(lam=lam), SITES)["personal"]
    files = {f"personal.{s}": {"w": torch.tensor([v])} for s, v in zip(SITES, values, strict=True)}
    if steps:
        for i, tensors in enumerate(files.values()):
            tensors["steps"] = torch.tensor([10 * i])
    track.load_files(files)
    return track


def merge(track, changes: dict[str, float]):
    for site, change in changes.items():
        track.accept(TRAIN, site, {"w": torch.tensor([change])}, 7)
    track.close(TRAIN)
    return [round(track.weights[s]["w"].item(), 6) for s in SITES]


def test_three_sites():
    """lam = 0.6, models 1, 2, 6 after training:

    w_1 = 0.6 * 1 + 0.4 / 2 * (2 + 6) = 0.6 + 1.6 = 2.2
    w_2 = 0.6 * 2 + 0.4 / 2 * (1 + 6) = 1.2 + 1.4 = 2.6
    w_3 = 0.6 * 6 + 0.4 / 2 * (1 + 2) = 3.6 + 0.6 = 4.2
    """
    assert merge(make_track(0.6), {"site-1": 1.0, "site-2": 2.0, "site-3": 6.0}) == [2.2, 2.6, 4.2]


def test_updates_are_added_to_the_sites_own_model():
    """Models 10, 20, 30, changes +1, +2, +6, lam = 1: nothing is pulled."""
    changes = {"site-1": 1.0, "site-2": 2.0, "site-3": 6.0}
    assert merge(make_track(1.0, (10.0, 20.0, 30.0)), changes) == [11.0, 22.0, 36.0]


def test_lam_one_over_k_is_the_plain_mean():
    """(1 + 2 + 6) / 3 = 3 for every site: FedAvg of equal sites."""
    assert merge(make_track(1 / 3), {"site-1": 1.0, "site-2": 2.0, "site-3": 6.0}) == [3.0, 3.0, 3.0]


def test_missing_site_keeps_its_model_and_is_not_pulled_from():
    """Site 2 (model 5) is missing, K' = 2, lam = 0.6: w_1 = 0.6 * 1 + 0.4 * 6 = 3, w_3 = 0.6 * 6 + 0.4 * 1 = 4."""
    assert merge(make_track(0.6, (0.0, 5.0, 0.0)), {"site-1": 1.0, "site-3": 6.0}) == [3.0, 5.0, 4.0]


def test_one_answer_pulls_nothing():
    """K' = 1: the model must not be multiplied by lam."""
    assert merge(make_track(0.6, (1.0, 5.0, 9.0)), {"site-2": 1.0}) == [1.0, 6.0, 9.0]


def test_no_answer_changes_nothing():
    assert merge(make_track(0.6, (1.0, 5.0, 9.0)), {}) == [1.0, 5.0, 9.0]


def test_integer_buffers_stay_the_sites_own():
    track = make_track(0.6, steps=True)
    for site in SITES:
        track.accept(TRAIN, site, {"w": torch.zeros(1), "steps": torch.tensor([1])}, 7)
    track.close(TRAIN)
    assert [track.weights[s]["steps"].item() for s in SITES] == [1, 11, 21]


@pytest.mark.parametrize("lam", [0.3, 0.0, 1.01, -1, float("nan"), "half"])
def test_lam_outside_its_range_is_refused(lam):
    with pytest.raises(UserError, match="lam must be in"):
        server_tracks(small_settings(lam=lam), SITES)


def test_a_personal_model_is_judged_by_its_own_site():
    assert make_track(0.6).models()["personal.site-2"] == ["site-2"]


def test_one_site_is_refused():
    with pytest.raises(UserError, match="at least 2 sites"):
        server_tracks(small_settings(), ["alone"])


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_blocks_of_entries_change_nothing(monkeypatch, block):
    """K' = 2, lam = 0.75: w_1 <- 0.75 * 0 + 0.25 * 4 = 1 and w_2 <- 0.75 * 4 + 0.25 * 0 = 3, in whatever blocks."""
    monkeypatch.setattr(pull_in_place, "_BLOCK", block)
    shapes = {"a": (2,), "b": (5,), "c": (1, 2), "d": ()}
    models = [{k: torch.full(shape, v) for k, shape in shapes.items()} for v in (0.0, 4.0)]
    for model in models:
        model["d64"] = model["d"].double()
        model["steps"] = torch.tensor(7)
    pull_in_place.soft_pull_(models, 0.75)
    for model, expected in zip(models, (1.0, 3.0), strict=True):
        assert all((v == expected).all() for k, v in model.items() if k != "steps")
        assert model["steps"] == 7 and model["d64"].dtype == torch.float64
