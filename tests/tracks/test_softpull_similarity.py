"""SoftPull by similarity, on numbers small enough to do by hand."""

import math

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.selectors.releases import exact_sums
from fedsm.tracks import check_options, pull_in_place, server_tracks
from fedsm.tracks.base import REGISTER, TRAIN
from fedsm.tracks.selector_statistics import StatisticsServer
from tests.helpers.descriptors import rows_of
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.track_run import TrackRun

BY_HAND = [[0.0, 4.0, 16.0], [4.0, 0.0, 20.0], [16.0, 20.0, 0.0]]
MODELS = {"site-1": 1.0, "site-2": 2.0, "site-3": 6.0}


def job(lam: float = 0.6, **given):
    overrides = ["tracks.personal.pull=similarity", *given.pop("overrides", [])]
    return small_settings(selector="statistics", lam=lam, overrides=overrides, **given)


@pytest.fixture
def distances(monkeypatch):
    """Sets the squared distances between the sites."""

    def set_to(squared):
        tensor = torch.tensor(squared, dtype=torch.float64)
        monkeypatch.setattr(StatisticsServer, "site_distances", lambda self: tensor)

    return set_to


def pulled(settings, models: dict[str, float], sites=SITES) -> list[float]:
    """One round that makes these models; a site that is not named does not answer."""
    track = server_tracks(settings, sites)["personal"]
    track.load_files({f"personal.{s}": {"w": torch.zeros(1)} for s in sites})
    for site, value in models.items():
        track.accept(TRAIN, site, {"w": torch.tensor([value])}, 7)
    track.close(TRAIN)
    return [track.weights[s]["w"].item() for s in sites]


def test_three_sites(distances):
    """lam = 0.6, models 1, 2, 6; squared distances 4 (1-2), 16 (1-3), 20 (2-3), so h^2 = 16 and
    s_12 = 0.894247, s_13 = 0.645878, s_23 = 0.581735 (`test_similarity.py`):

    w_1 = 0.6 * 1 + 0.4 * (0.894247 * 2 + 0.645878 * 6) / 1.540125 = 0.6 + 0.4 * 3.677469 = 2.070988
    w_2 = 0.6 * 2 + 0.4 * (0.894247 * 1 + 0.581735 * 6) / 1.475982 = 1.2 + 0.4 * 2.970674 = 2.388269
    w_3 = 0.6 * 6 + 0.4 * (0.645878 * 1 + 0.581735 * 2) / 1.227613 = 3.6 + 0.4 * 1.473875 = 4.189550

    The plain SoftPull is 2.2, 2.6, 4.2: each is nearer to the site that is like it.
    """
    distances(BY_HAND)
    assert pulled(job(), MODELS) == pytest.approx([2.070988, 2.388269, 4.189550], abs=2e-6)


def test_equal_similarities_are_soft_pull_to_the_last_bit(distances):
    """Also with unknown distances: no site has sent its sums yet."""
    models = {"site-1": 0.1234567, "site-2": 0.7654321, "site-3": -0.3333333}  # other sums would round otherwise
    plain = pulled(small_settings(selector="statistics", lam=0.7), models)
    for squared in ([[0.0, 7.0, 7.0], [7.0, 0.0, 7.0], [7.0, 7.0, 0.0]], [[math.nan] * 3] * 3, [[0.0] * 3] * 3):
        distances(squared)
        assert pulled(job(0.7), models) == plain
    distances(BY_HAND)
    assert pulled(job(0.7), models) != plain
    assert pulled(job(0.7, max_share=1.0), models) == plain, "where no site may weigh more than another"


def test_the_weighted_pull_with_equal_shares_is_soft_pull():
    """Not the same operations: equal up to rounding in float32."""
    generator = torch.Generator().manual_seed(0)
    models = [
        {"a": torch.randn(5, 7, generator=generator), "b": torch.randn(300_000, generator=generator)} for _ in range(5)
    ]
    others = [{k: v.clone() for k, v in m.items()} for m in models]
    shares = (torch.ones(5, 5) - torch.eye(5)) / 4
    pull_in_place.weighted_pull_(models, 0.7, shares)
    pull_in_place.soft_pull_(others, 0.7)
    assert max((m[k] - o[k]).abs().max().item() for m, o in zip(models, others, strict=True) for k in m) < 5e-7


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_blocks_of_entries_change_nothing(monkeypatch, block):
    """Shares 1/4 and 3/4, models 0, 4, 8, lam = 0.75: w_1 <- 0.25 * (0.25 * 4 + 0.75 * 8) = 1.75;
    w_2 <- 0.75 * 4 + 0.25 * 0.75 * 8 = 4.5; w_3 <- 0.75 * 8 + 0.25 * 0.75 * 4 = 6.75. In whatever blocks."""
    monkeypatch.setattr(pull_in_place, "_BLOCK", block)
    shapes = {"a": (2,), "b": (5,), "c": (1, 2), "d": ()}
    models = [{k: torch.full(shape, v) for k, shape in shapes.items()} for v in (0.0, 4.0, 8.0)]
    for model in models:
        model["d64"], model["steps"] = model["d"].double(), torch.tensor(7)
    shares = torch.tensor([[0, 0.25, 0.75], [0.25, 0, 0.75], [0.25, 0.75, 0]], dtype=torch.float64)
    pull_in_place.weighted_pull_(models, 0.75, shares)
    for model, expected in zip(models, (1.75, 4.5, 6.75), strict=True):
        assert all((v == expected).all() for k, v in model.items() if k != "steps")
        assert model["steps"] == 7 and model["d64"].dtype == torch.float64


def test_lam_one_is_local_training(distances):
    distances(BY_HAND)
    assert pulled(job(lam=1.0), MODELS) == [1.0, 2.0, 6.0]


def test_a_missing_site_takes_no_part_and_the_shares_are_taken_anew(distances):
    """Four sites, site 3 silent (model 0). Squared distances: 1-2 4, 1-4 16, 2-4 20, of site 3 to all 16: h^2 = 16.
    The others are pulled as three: 2.070988, 2.388269, 4.189550 as above."""
    distances([[0, 4, 16, 16], [4, 0, 16, 20], [16, 16, 0, 16], [16, 20, 16, 0]])
    sites = [*SITES, "site-4"]
    found = pulled(job(), {"site-1": 1.0, "site-2": 2.0, "site-4": 6.0}, sites)
    assert found == pytest.approx([2.070988, 2.388269, 0.0, 4.189550], abs=2e-6)


def test_one_answer_pulls_nothing_and_two_are_soft_pull(distances):
    """K' = 2: 0.6 * 1 + 0.4 * 6 = 3 and 0.6 * 6 + 0.4 * 1 = 4, whatever the distance."""
    distances(BY_HAND)
    assert pulled(job(), {"site-2": 6.0}) == [0.0, 6.0, 0.0]
    assert pulled(job(), {"site-1": 1.0, "site-3": 6.0}) == pytest.approx([3.0, 0.0, 4.0])


def test_the_distances_come_from_the_sums_of_the_registration():
    """Three sites whose descriptors are shifted by 0, 1 and 5: the first two are each other's nearest."""
    tracks = server_tracks(job(), SITES)
    for site, shift in zip(SITES, (0.0, 1.0, 5.0), strict=True):
        tracks["selector"].accept(REGISTER, site, exact_sums(rows_of(40, seed=len(site), shift=shift)))
    squared = tracks["selector"].site_distances()
    assert squared[0, 1] < squared[0, 2] and squared[0, 1] < squared[1, 2]
    shares = tracks["personal"].facts()["pull"]
    assert set(shares["site-1"]) == {"site-2", "site-3"}
    assert sum(shares["site-3"].values()) == pytest.approx(1, abs=1e-3)
    assert shares["site-1"]["site-2"] > 0.55 > shares["site-1"]["site-3"]
    assert len(repr(shares)) < 300


def test_a_site_without_sums_has_unknown_distances():
    tracks = server_tracks(job(), SITES)
    assert tracks["selector"].site_distances().isnan().all()
    for site in SITES[:2]:
        tracks["selector"].accept(REGISTER, site, exact_sums(rows_of(40)))
    squared = tracks["selector"].site_distances()
    assert squared[:2, :2].isfinite().all() and squared[2].isnan().all() and squared[:, 2].isnan().all()


@pytest.mark.parametrize(
    "given",
    [
        {"selector": "gradient"},
        {"selector": "fedavg"},
        {"method": "fedsm-extra"},
        {"selector": "statistics", "overrides": ["tracks.selector.descriptor=encoder"]},
        {"overrides": ["tracks={global: {kind: fedavg}, personal: {kind: softpull}}"]},
    ],
)
def test_it_is_refused_where_there_are_no_sums_before_round_1(given):
    overrides = [*given.pop("overrides", []), "tracks.personal.pull=similarity"]
    with pytest.raises(UserError, match="compares the sums that a statistics selector has before round 1; selector"):
        check_options(small_settings(overrides=overrides, **given))
    check_options(job(overrides=["tracks.selector.descriptor=image+random"]))


def test_a_run_of_restarts_is_the_uninterrupted_one_and_sites_come_and_go():
    """The contract of all kinds, with this option: state is nowhere but in the checkpoint."""
    straight, restarted = TrackRun(job(rounds=3)), TrackRun(job(rounds=3))
    for run in (straight, restarted):
        run.register()
        run.play_round()
    restarted.restart_sites()
    restarted.restart_server()
    before = straight.files()
    for run in (straight, restarted):
        run.play_round(SITES[:2])
    assert torch.equal(before["personal.site-3"]["model.0.conv.unit0.conv.weight"],
                       straight.files()["personal.site-3"]["model.0.conv.unit0.conv.weight"])  # fmt: skip
    one, two = straight.run().files(), restarted.run().files()
    assert all(torch.equal(one[stem][k], two[stem][k]) for stem in one for k in one[stem])
    grown = TrackRun(job(rounds=3))
    grown.register()
    grown.play_round()
    later = grown.with_sites([*SITES, "site-4"])
    later.play_round()
    assert later.servers["selector"].site_distances().isfinite().all()
    assert later.with_sites(SITES[:2]).run().files().keys() == {
        "global",
        "selector.sums",
        *(f"personal.{s}" for s in SITES[:2]),
    }
