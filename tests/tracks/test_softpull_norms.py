"""SoftPull with norm layers that stay the sites' own, on numbers small enough to do by hand."""

import pytest
import torch

from fedsm.nets import build_unet
from fedsm.tracks import server_tracks
from fedsm.tracks.base import TRAIN
from fedsm.tracks.fedbn import norm_entries
from tests.helpers.small_jobs import SITES, small_settings

TWO = SITES[:2]


def closed(norm: str, unet_norm: str = "[INSTANCE, {affine: true}]", values=(1.0, 5.0)):
    """Two sites whose models have these values everywhere after training, pulled with lam = 0.75."""
    overrides = [f"tracks.personal.norm={norm}", f"task.unet.norm={unet_norm}"]
    settings = small_settings(selector="statistics", lam=0.75, overrides=overrides)
    track = server_tracks(settings, TWO)["personal"]
    template = track.weights[TWO[0]]
    track.load_files({f"personal.{s}": {k: torch.zeros_like(v) for k, v in template.items()} for s in TWO})
    for site, value in zip(TWO, values, strict=True):
        update = {k: torch.full(v.shape, value).to(v.dtype) for k, v in template.items()}
        track.accept(TRAIN, site, update, 7)
    track.close(TRAIN)
    return track, norm_entries(build_unet(settings.task))


@pytest.mark.parametrize("unet_norm", ["[INSTANCE, {affine: true}]", "BATCH", "[GROUP, {num_groups: 2}]"])
def test_norm_layers_stay_and_the_rest_is_pulled(unet_norm):
    """Models 1 and 5, lam = 0.75: 0.75 * 1 + 0.25 * 5 = 2 and 0.75 * 5 + 0.25 * 1 = 4; norm layers stay 1 and 5,
    running statistics and counters with them."""
    track, norms = closed("own", unet_norm)
    assert norms and norms < set(track.weights[TWO[0]])
    assert track.held() == norms
    for site, own, pulled in zip(TWO, (1.0, 5.0), (2.0, 4.0), strict=True):
        for key, value in track.weights[site].items():
            assert (value == (own if key in norms else pulled)).all(), key


def test_pulled_is_the_default_and_pulls_norm_layers():
    track, norms = closed("pulled")
    assert not track.held()
    assert all((track.weights[TWO[0]][key] == 2.0).all() for key in norms)
    default = server_tracks(small_settings(selector="statistics"), TWO)["personal"]
    assert (default.options["norm"], default.options["pull"]) == ("pulled", "uniform")


@pytest.mark.parametrize("unet_norm", ["null", "[INSTANCE, {affine: false}]"])
def test_without_norm_entries_it_is_soft_pull_to_the_bit(unet_norm):
    own, pulled = (closed(norm, unet_norm, (0.1, 0.7))[0] for norm in ("own", "pulled"))
    for site in TWO:
        assert all(torch.equal(own.weights[site][k], v) for k, v in pulled.weights[site].items())


def test_lam_one_over_k_averages_all_but_the_norm_layers():
    """lam = 1/2 of two sites: FedBN with equal weights."""
    settings = small_settings(selector="statistics", lam=0.5, overrides=["tracks.personal.norm=own"])
    track = server_tracks(settings, TWO)["personal"]
    generator = torch.Generator().manual_seed(0)
    made = {s: {k: torch.randn(v.shape, generator=generator) for k, v in track.weights[s].items()} for s in TWO}
    expected = {k: (made[TWO[0]][k] + made[TWO[1]][k]) / 2 for k in made[TWO[0]]}
    track.load_files({f"personal.{s}": {k: torch.zeros_like(v) for k, v in made[s].items()} for s in TWO})
    for site in TWO:
        track.accept(TRAIN, site, made[site], 7)
    track.close(TRAIN)
    for site in TWO:
        for key, value in track.weights[site].items():
            assert torch.allclose(value, made[site][key] if key in track.held() else expected[key], atol=1e-6), key
