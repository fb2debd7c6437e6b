"""The private sums: the accountant by hand, the sensitivity by search, and what the noise leaves."""

import math

import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.selectors.descriptor import describe, descriptor_length, image_scale
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, pack, unpack
from fedsm.selectors.private_sums import SENSITIVITY, PrivateSums, StatisticsPrivacy, gaussian_delta, gaussian_sigma
from fedsm.tracks import client_tracks
from fedsm.tracks.base import SiteContext
from tests.helpers.descriptors import rows_of
from tests.helpers.small_jobs import small_settings

CPU = torch.device("cpu")


def test_delta_by_hand():
    """Sensitivity 1, sigma 1. epsilon = 0: Phi(0.5) - Phi(-0.5) = 0.691462 - 0.308538 = 0.382925.

    epsilon = 1: Phi(0.5 - 1) - e Phi(-0.5 - 1) = 0.308538 - 2.718282 * 0.066807 = 0.126937.
    """
    assert gaussian_delta(1, 0, 1) == pytest.approx(0.382925, abs=1e-6)
    assert gaussian_delta(1, 1, 1) == pytest.approx(0.126937, abs=1e-6)


def test_sigma_by_hand():
    """The inverse of the above; it scales with the sensitivity, and undercuts the classical bound.

    That is sqrt(2 ln(1.25 / delta)) / epsilon = sqrt(2 * 11.736069) = 4.844805 for (1, 1e-5).
    """
    assert gaussian_sigma(1, 0.1269367, 1) == pytest.approx(1, abs=1e-6)
    assert gaussian_sigma(1, 1e-5, 1) == pytest.approx(3.730632, abs=1e-6)
    assert gaussian_sigma(1, 1e-5, SENSITIVITY) == pytest.approx(3.730632 * 2.121320, abs=1e-5)
    assert gaussian_sigma(1, 1e-5, 1) < math.sqrt(2 * math.log(1.25e5)) == pytest.approx(4.844805, abs=1e-6)
    for epsilon in (0.01, 8, 100):
        assert gaussian_delta(gaussian_sigma(epsilon, 1e-5, 1), epsilon, 1) <= 1e-5


def test_no_pair_of_images_moves_the_sums_further_than_the_sensitivity():
    """Lengths a, b in 0..1 and the cosine t: |u - v|^2 + |u u^T - v v^T|^2; the worst is a = b = 1, t = -1/2."""
    lengths, cosines = torch.linspace(0, 1, 101).double(), torch.linspace(-1, 1, 201).double()
    a, b, t = torch.meshgrid(lengths, lengths, cosines, indexing="ij")
    moved = a**2 + b**2 - 2 * a * b * t + a**4 + b**4 - 2 * (a * b * t) ** 2
    assert moved.max().item() == pytest.approx(SENSITIVITY**2)
    worst = moved.flatten().argmax()
    assert (a.flatten()[worst], b.flatten()[worst]) == (1, 1) and t.flatten()[worst].item() == pytest.approx(-0.5)


def test_hardly_any_noise_gives_the_plain_sums(tmp_path, monkeypatch):
    make = PrivateSums(StatisticsPrivacy(1.0, 1e-5, clip=1e3), tmp_path)
    make.sigma = 1e-12
    rows = rows_of(200)
    sums = make(rows, 3)
    assert sums["n"].item() == 200
    assert torch.allclose(sums["sum"], rows.sum(0))
    assert torch.allclose(unpack(sums["outer"], 63), rows.T @ rows, rtol=1e-6)


def test_the_noise_has_the_size_that_was_asked_for(tmp_path):
    """The mean of n = 500 equal images moves by clip sigma / n a number, in public units."""
    rows = rows_of(1).expand(500, 63).contiguous()
    centre, scale = image_scale(3)
    moved = []
    for i in range(30):
        make = PrivateSums(StatisticsPrivacy(1.0, 1e-5, clip=20.0), tmp_path / str(i))
        moved.append((make(rows, 3)["sum"] / 500 - rows[0]) / scale)
    expected = 20 * make.sigma / 500
    assert torch.stack(moved).std().item() == pytest.approx(expected, rel=0.1)
    assert make.sigma == pytest.approx(3.730632 * 2.121320, abs=1e-5)


def test_one_image_cannot_add_more_than_the_clip(tmp_path):
    make = PrivateSums(StatisticsPrivacy(1.0, 1e-5, clip=2.0), tmp_path)
    make.sigma = 1e-12
    centre, scale = image_scale(3)
    wild = rows_of(1) + 1e6
    assert ((make(wild, 3)["sum"] - centre) / scale).norm().item() == pytest.approx(2.0)


@pytest.mark.parametrize("epsilon", [0.1, 1, 8])
def test_the_classes_can_be_used_at_any_epsilon(tmp_path, epsilon):
    """Even where the noise is larger than everything: symmetric, positive definite, finite."""
    sums = [
        PrivateSums(StatisticsPrivacy(epsilon, 1e-5), tmp_path / str(k))(rows_of(20, k, shift=k), 3) for k in range(3)
    ]
    classes = gaussian_classes(sums)
    assert torch.linalg.eigvalsh(classes["correlation"]).min() > 0
    payload = classes | {"shrinkage": torch.tensor(0.02), "descriptor": torch.tensor(0)}
    selector = StatisticsSelector(small_settings(), 3, payload, CPU)
    assert torch.isfinite(selector.distances_of(rows_of(5))).all()


def test_private_and_plain_sites_mix_and_much_data_makes_noise_small(tmp_path):
    plain = rows_of(20_000, 1, shift=2.0)
    private = PrivateSums(StatisticsPrivacy(3.0, 1e-6, clip=20.0), tmp_path)(rows_of(20_000, 0), 3)
    other = {"n": torch.tensor(20_000.0).double(), "sum": plain.sum(0)}
    classes = gaussian_classes([private, other | {"outer": pack(plain.T @ plain)}])
    payload = classes | {"shrinkage": torch.tensor(0.02), "descriptor": torch.tensor(0)}
    selector = StatisticsSelector(small_settings(), 2, payload, CPU)
    assert (selector.distances_of(rows_of(500, 7)).argmin(1) == 0).float().mean() > 0.95
    assert (selector.distances_of(rows_of(500, 8, shift=2.0)).argmin(1) == 1).float().mean() > 0.95


def test_the_same_sums_are_sent_again_and_others_are_counted(tmp_path):
    rows = rows_of(30)
    first, again = (PrivateSums(StatisticsPrivacy(1.0, 1e-5, budget=2.0), tmp_path) for _ in range(2))
    sent = first(rows, 3)
    assert all(torch.equal(sent[k], v) for k, v in again(rows, 3).items())
    report = {"epsilon": 1.0, "delta": 1e-5, "sigma": again.sigma, "clip": 4.0, "budget": 2.0, "releases": 1}
    assert again.report() == report
    assert not torch.equal(again(rows[:29].contiguous(), 3)["sum"], sent["sum"])
    assert again.report()["releases"] == 2
    other = PrivateSums(StatisticsPrivacy(1.0, 1e-5), tmp_path / "elsewhere")
    assert not torch.equal(other(rows, 3)["sum"], sent["sum"]), "the noise is the operating system's, not a seed's"


@pytest.mark.parametrize("channels", [1, 3])
def test_the_public_constants_fit_the_descriptor(channels):
    centre, scale = image_scale(channels)
    assert len(centre) == len(scale) == descriptor_length(channels)
    torch.manual_seed(0)
    unit = (describe(torch.rand(4, channels, 32, 32) * 0.5) - centre) / scale
    assert unit.norm(dim=1).max() < 60, "of the right size"


def test_descriptors_without_public_constants_are_refused(tmp_path):
    settings = small_settings(selector="statistics", overrides=["tracks.selector.descriptor=encoder"])
    release = PrivateSums(StatisticsPrivacy(1.0, 1e-5), tmp_path)
    with pytest.raises(UserError, match="works with the descriptor 'image', not 'encoder'"):
        client_tracks(settings, SiteContext(0, 3, CPU, release))
