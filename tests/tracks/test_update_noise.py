"""Privacy of whole sites: clipped updates, and noise on their mean."""

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.core.settings import UpdatePrivacy
from fedsm.tracks import check_options, server_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.update_noise import UpdateNoise
from tests.helpers.small_jobs import SITES, small_settings

PRIVACY = {"clip": 2.0, "noise_multiplier": 3.0, "delta": 1e-2}


def job(method="fedavg", overrides=(), **privacy):
    return small_settings(method=method, overrides=[f"update_privacy={PRIVACY | privacy}", *overrides])


def test_an_update_is_scaled_down_to_the_clip():
    """(3, 4) has length 5: by 2/5 it is (1.2, 1.6). (1, 1) is short enough."""
    noise = UpdateNoise(UpdatePrivacy(**PRIVACY))
    clipped = noise.clipped({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    assert (clipped["a"].item(), clipped["b"].item()) == (pytest.approx(1.2), pytest.approx(1.6))
    assert noise.clipped({"a": torch.ones(2)}, 1.0)["a"].tolist() == [1.0, 1.0]


def test_noise_by_hand():
    """Weights 1 and 3: the larger site moves the mean by 2 * 3/4 at most, and the noise is 3 times that, 4.5."""
    noise = UpdateNoise(UpdatePrivacy(**PRIVACY))
    for weight in (1.0, 3.0):
        noise.clipped({"a": torch.zeros(1)}, weight)
    weights = {"a": torch.zeros(20_000)}
    noise.add_(weights)
    assert weights["a"].std().item() == pytest.approx(4.5, rel=0.03)
    kept = weights["a"].clone()
    noise.add_(weights)
    assert torch.equal(weights["a"], kept), "a round without an answer releases nothing"


def test_a_round_of_fedavg_moves_by_clipped_updates_and_noise():
    """Hardly any noise: three sites, one far off. Each moves its entries by clip / 3 at most."""
    servers = server_tracks(job(noise_multiplier=1e-9), SITES)
    track = servers["global"]
    before = {key: value.clone() for key, value in track.weights.items()}
    for site, size in zip(SITES, (0.0, 0.0, 1e6), strict=True):
        track.accept(TRAIN, site, {k: torch.full_like(v, size) for k, v in before.items()}, 1.0)
    track.close(TRAIN)
    moved = torch.stack([(track.weights[k] - v).norm() for k, v in before.items()]).norm()
    assert moved.item() == pytest.approx(2 / 3, rel=1e-3)


@pytest.mark.parametrize("method", ["fedsm", "scaffold", "local"])
def test_methods_that_it_cannot_hide_are_refused(method):
    with pytest.raises(UserError, match="update_privacy cannot hide what a site sends for track") as caught:
        check_options(job(method))
    assert "fedavg or fedprox" in str(caught.value)


def test_counters_are_refused():
    with pytest.raises(UserError, match="cannot hide counters such as .*num_batches_tracked"):
        check_options(job(overrides=["task.unet.norm=BATCH"]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["aggregation=median", "min_sites=3"], "update_privacy knows by how much"),
        (["quarantine=3"], "quarantine judges single updates"),
        (["secure_sum=true", "min_sites=3", "norm_check=off"], "secure_sum hides single updates, and update_privacy"),
    ],
)
def test_what_cannot_go_with_it_is_refused(overrides, words):
    with pytest.raises(UserError, match=words):
        check_options(job(overrides=overrides))
