"""What cannot go together with `fraction`, and what tracks keep for sites that were not asked."""

import pytest

from fedsm.core.errors import UserError
from fedsm.tracks import check_tracks, server_tracks
from fedsm.tracks.base import TRAIN
from tests.helpers.small_jobs import small_settings

TEN = [f"site-{k + 1}" for k in range(10)]


def sampled(fraction=0.2, **given):
    return small_settings(rounds=30, **given).replace(fraction=fraction)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lam": 0.3}, r"lam must be in \[1/n, 1\] = \[0.5, 1\] for the n = 2 sites"),
        ({"lam": 0.7, "min_sites": 1, "fraction": 0.1}, "asks one of 10 sites in a round, and SoftPull has nothing"),
        ({"lam": 0.7, "secure_sum": True, "norm_check": "off", "min_sites": 3}, "seldom asks it twice"),
        ({"method": "fedsm-extra", "lam": 0.7, "overrides": ["tracks.selector.rounds=26"]}, "in 4 rounds some would"),
    ],
)
def test_what_cannot_go_together_is_refused(given, words):
    given = dict(given)
    settings = sampled(given.pop("fraction", 0.2), **given)
    with pytest.raises(UserError, match=words) as refused:
        check_tracks(settings, TEN)
    assert refused.value.remedy
    check_tracks(settings.replace(fraction=1), TEN)


def test_fewer_rounds_than_a_turn_are_fine_where_no_model_is_a_sites_own():
    """2 of 10 sites in 3 rounds: four sites never train, and the global model is FedAvg's."""
    check_tracks(sampled(method="fedavg").replace(rounds=3), TEN)
    with pytest.raises(UserError, match="at least 5 rounds"):
        check_tracks(sampled(method="local").replace(rounds=3), TEN)


def test_extra_sends_the_models_again_to_no_site_that_only_was_not_asked():
    """Round 1 asks a and b, round 2 c, round 3 all; b did not answer round 1. In round 3 only b gets them again."""
    settings = small_settings(method="fedsm-extra", rounds=9, lam=0.7, overrides=["tracks.selector.rounds=3"])
    tracks = server_tracks(settings, ["a", "b", "c"])
    selector = tracks["selector"]
    models = {"global": tracks["global"].weights} | {f"personal.{s}": tracks["global"].weights for s in "abc"}

    def asked(site) -> bool:
        return any(key.startswith("model/") for key in selector.payload(TRAIN, site))

    update = {key: value * 0 for key, value in selector.weights.items()}
    got = []
    for number, sites, answers in ((7, "ab", "a"), (8, "c", "c"), (9, "abc", "abc")):
        selector.open(number, lambda: models)
        got.append([site for site in sites if asked(site)])
        for site in answers:
            selector.accept(TRAIN, site, update, 1.0)
        selector.close(TRAIN)
    assert got == [["a", "b"], ["c"], ["b"]]
