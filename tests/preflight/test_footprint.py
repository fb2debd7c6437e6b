"""The estimate of memory and disk against hand-made sums and against what is really made."""

import pytest
import torch
from torch import nn

from app_fedsm.config.build import PERSONAL, SELECTORS, available, build_settings
from fedsm.data.cache import SiteCache
from fedsm.data.dataset import load_site
from fedsm.nets import build_unet, count_parameters
from fedsm.preflight.footprint import PROCESS, activation_bytes, cache_bytes, job_footprint
from fedsm.tracks import client_tracks
from fedsm.tracks.base import SiteContext
from tests.helpers.small_jobs import small_settings


def test_activations_by_hand():
    """Kept: the image (8 x 8 floats = 256 bytes) and the ReLU's output (2 channels: 512 bytes), which ReLU and the
    second convolution share; and twice the largest for the way back: 256 + 512 + 2 * 512."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))
        assert activation_bytes(net, torch.zeros(1, 1, 8, 8)) == 256 + 512 + 2 * 512


def test_meta_tensors_say_what_real_ones_do():
    task, sizes = small_settings().task, []
    for device in ("cpu", "meta"):
        with torch.device(device):
            sizes.append(activation_bytes(build_unet(task), torch.zeros(4, 3, 32, 32)))
    assert sizes[0] == sizes[1] > 4 * 3 * 32 * 32 * 4


def test_one_network_by_hand():
    """FedAvg: weights, gradient and two moments of one U-Net; two moments of three rounds on disk; the model as it came
    and the answer."""
    settings = build_settings("nuclei", "fedavg", size=64)
    weights = 4 * count_parameters(build_unet(settings.task))
    need = job_footprint(settings)
    assert (need.networks, need.state, need.exchange) == (4 * weights, 6 * weights, 2 * weights)
    assert need.training == need.networks + need.activations
    assert need.memory(on_cpu=True) - need.memory(on_cpu=False) == need.training
    assert need.memory(on_cpu=False) == PROCESS + 2 * weights


def test_the_gradient_selector_keeps_no_moments():
    by_kind = {kind: job_footprint(small_settings(selector=kind)) for kind in ("gradient", "fedavg", "statistics")}
    selector = by_kind["fedavg"].state - by_kind["gradient"].state
    assert by_kind["gradient"].state == by_kind["statistics"].state
    assert by_kind["fedavg"].networks - by_kind["gradient"].networks == selector // 3 > 0


def test_state_is_what_a_track_really_keeps():
    settings = small_settings(method="fedavg")
    track = client_tracks(settings, SiteContext(0, 3, torch.device("cpu")))["global"]
    track.step(torch.rand(2, 3, 32, 32), torch.ones(2, 2, 32, 32))
    kept = {k: v for k, v in track.state().items() if not k.endswith(".step")}
    assert job_footprint(settings).state == 3 * sum(v.nbytes for v in kept.values())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_activations_grow_with_the_batch(batch_size):
    one, many = (job_footprint(small_settings(batch_size=b)).activations for b in (1, batch_size))
    assert many == pytest.approx(batch_size * one, rel=0.01)


@pytest.mark.parametrize(
    "given",
    [{"method": m} for m in available("methods")]
    + [{"personal": p} for p in PERSONAL]
    + [{"selector": s} for s in SELECTORS],
    ids=str,
)
def test_every_method_has_a_footprint(given):
    need = job_footprint(small_settings(**given))
    assert need.networks > 0 and need.activations > 0


def test_cache_is_as_large_as_said(data_root, tmp_path):
    settings = small_settings()
    load_site(data_root / "site-1", "site-1", settings, cache=SiteCache(tmp_path, 10**9))
    written = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.suffix in (".f32", ".u8"))
    assert cache_bytes(settings, 16) == written
