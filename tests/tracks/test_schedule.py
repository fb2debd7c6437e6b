"""The learning rate over the rounds, by hand, and which rates it scales."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.settings import JobSettings
from fedsm.tracks import check_options, client_tracks, rate_factor_in
from fedsm.tracks.base import SiteContext
from fedsm.tracks.schedule import rate_factor
from tests.helpers.small_jobs import small_settings
from tests.helpers.small_site import noise, train
from tests.helpers.track_run import TrackRun, job_with

COSINE = {"schedule": "cosine", "rounds": 4}


def factors(settings: JobSettings) -> list[float]:
    return [round(rate_factor_in(settings, t), 4) for t in range(1, settings.rounds + 1)]


def test_cosine_over_four_rounds():
    """(1 + cos(pi (t - 1) / 4)) / 2: cos 0 = 1, cos 45 = 0.7071, cos 90 = 0, cos 135 = -0.7071 degrees."""
    assert factors(small_settings(**COSINE)) == [1.0, 0.8536, 0.5, 0.1464]


def test_warm_up_of_two_rounds_then_the_cosine_over_the_four_that_are_left():
    """t / (W + 1): 1/3, 2/3."""
    settings = small_settings(schedule="cosine", rounds=6, warmup_rounds=2)
    assert factors(settings) == [0.3333, 0.6667, 1.0, 0.8536, 0.5, 0.1464]
    assert factors(settings.replace(schedule="constant")) == [0.3333, 0.6667, 1.0, 1.0, 1.0, 1.0]


def test_off_is_exactly_one_and_one_round_of_cosine_is_constant():
    assert [rate_factor("constant", 0, t, 3) for t in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert rate_factor("cosine", 0, 1, 1) == 1.0


def test_no_round_has_a_rate_of_zero():
    """SCAFFOLD divides by it."""
    assert all(rate_factor("cosine", 3, t, 1000) > 0 for t in range(1, 1001))


def test_the_selector_s_own_rounds_do_not_count():
    """FedSM-extra of 4 + 2 rounds: the networks' cosine has four; later ones play no part and stay at the last."""
    settings = small_settings(method="fedsm-extra", schedule="cosine", rounds=6, overrides=["tracks.selector.rounds=2"])
    assert factors(settings) == [1.0, 0.8536, 0.5, 0.1464, 0.1464, 0.1464]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": 3, "warmup_rounds": 3}, r"warmup_rounds \(3\) must be fewer than rounds \(3\)"),
        (
            {"method": "fedsm-extra", "rounds": 6, "warmup_rounds": 4, "overrides": ["tracks.selector.rounds=2"]},
            r"warmup_rounds \(4\) must be fewer than the rounds before the selector's own \(4\)",
        ),
    ],
)
def test_a_warm_up_that_never_ends_is_refused(given, words):
    with pytest.raises(UserError, match=words):
        check_options(small_settings(**given))


def rates_of(kind: str, factor: float) -> dict[str, float]:
    """The learning rate of each track's optimizer after a step."""
    settings = job_with(kind).replace(lr=0.01, selector_lr=0.02)
    site = SiteContext(0, 3, torch.device("cpu"), rate_factor=factor)
    tracks = client_tracks(settings, site)
    for track in tracks.values():
        track.load_state({})
    run = TrackRun(settings)
    for name, track in tracks.items():
        train(track, run.servers[name].payload("train", run.sites[0]), noise(2))
    learners = {name: getattr(track, "learner", None) for name, track in tracks.items()}
    return {n: round(learner.optimizer.param_groups[0]["lr"], 8) for n, learner in learners.items() if learner}


@pytest.mark.parametrize("kind", ["softpull", "fedprox", "scaffold", "local", "ditto", "apfl", "per-fedavg", "fedbn"])
def test_a_quarter_of_the_rate(kind):
    assert set(rates_of(kind, 0.25).values()) == {0.0025}


def test_fine_tuning_has_its_part_of_the_round_s_rate_and_a_selector_keeps_its_own():
    """FT: 0.1 * 0.01 * 0.25. A trained selector: 0.02 in every round."""
    assert rates_of("finetune", 0.25) == {"global": 0.0025, "personal": 0.00025}
    assert rates_of("selector_fedavg", 0.25) == {"global": 0.0025, "personal": 0.0025, "selector": 0.02}
