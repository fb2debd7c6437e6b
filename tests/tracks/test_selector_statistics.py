"""The closed-form selector: by hand, against pooled data, and at its edges."""

import numpy as np
import pytest
import torch

from fedsm.tracks import client_tracks, server_tracks
from fedsm.tracks.descriptor import describe, descriptor_length
from fedsm.tracks.selector_statistics import StatisticsSelector, gaussian_classes, pack, unpack
from tests.conftest import SITES, small_settings

CPU = torch.device("cpu")


def sums_of(rows: torch.Tensor) -> dict:
    rows = rows.double()
    return {"n": torch.tensor(float(len(rows)), dtype=torch.float64), "sum": rows.sum(0), "outer": pack(rows.T @ rows)}


def test_classes_by_hand():
    """One feature; site 1 has 1 and 3, site 2 has 10, 12 and 14.

    mu_1 = 2, mu_2 = 12; scatter = (1 + 1) + (4 + 0 + 4) = 10; Sigma = 10 / (5 - 2) = 3.333; correlation = 1.
    """
    classes = gaussian_classes([sums_of(torch.tensor([[1.0], [3.0]])), sums_of(torch.tensor([[10.0], [12.0], [14.0]]))])
    assert classes["means"].tolist() == [[2.0], [12.0]]
    assert classes["deviation"].item() == pytest.approx((10 / 3) ** 0.5)
    assert classes["correlation"].tolist() == [[1.0]]


def test_equals_the_classifier_of_the_pooled_data():
    """Means and pooled covariance from the sites' sums are numpy's from all rows in one place."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(k, 1 + 0.1 * k, (20 + 5 * k, 6)) @ rng.normal(size=(6, 6)) for k in range(3)]
    classes = gaussian_classes([sums_of(torch.from_numpy(r)) for r in rows])

    centred = np.concatenate([r - r.mean(0) for r in rows])
    covariance = centred.T @ centred / (len(centred) - 3)
    deviation = np.sqrt(np.diag(covariance))
    assert np.allclose(classes["means"], [r.mean(0) for r in rows])
    assert np.allclose(classes["deviation"], deviation)
    assert np.allclose(classes["correlation"], covariance / np.outer(deviation, deviation))


def test_distance_and_softmax_by_hand(monkeypatch):
    """Means 0 and 4, deviation 2, no correlation. d(x) = 1: z = 0.5 and -1.5, m = 0.25 and 2.25.

    yhat_1 = e^-0.125 / (e^-0.125 + e^-1.125) = 1 / (1 + e^-1) = 0.7311
    """
    monkeypatch.setattr("fedsm.tracks.selector_statistics.describe", lambda x: torch.ones(1, 1, dtype=torch.float64))
    tensors = {
        "means": torch.tensor([[0.0], [4.0]], dtype=torch.float64),
        "deviation": torch.tensor([2.0], dtype=torch.float64),
        "correlation": torch.ones(1, 1, dtype=torch.float64),
        "shrinkage": torch.tensor(0.02),
    }
    selector = StatisticsSelector(None, 2, tensors, CPU)
    assert selector.distances(None).flatten().tolist() == pytest.approx([0.25, 2.25])
    assert selector.probabilities(None)[0, 0].item() == pytest.approx(0.7311, abs=1e-4)


def test_federated_equals_pooled_on_images():
    """Through both halves of the track: the same probabilities as a selector made of all images in one place."""
    torch.manual_seed(0)
    images = [torch.rand(12, 3, 32, 32) * (0.4 + 0.2 * k) for k in range(3)]
    settings = small_settings(selector="statistics")
    server = server_tracks(settings, SITES)["selector"]
    for k, site in enumerate(SITES):
        batches = [(b, None) for b in images[k].split(5)]
        server.register(site, client_tracks(settings, k, 3, CPU)["selector"].register(batches))
    payload = server.final_payload("site-1")

    pooled = gaussian_classes([sums_of(describe(i)) for i in images]) | {"shrinkage": payload["shrinkage"]}
    new = torch.rand(4, 3, 32, 32)
    ours = StatisticsSelector(settings, 3, payload, CPU).probabilities(new)
    theirs = StatisticsSelector(settings, 3, pooled, CPU).probabilities(new)
    assert torch.allclose(ours, theirs, atol=1e-9)
    known = torch.cat([StatisticsSelector(settings, 3, payload, CPU).probabilities(i).argmax(1) for i in images])
    assert (known == torch.arange(3).repeat_interleave(12)).float().mean() > 0.95


def test_statistics_are_small_and_travel_once():
    settings = small_settings(selector="statistics")
    server = server_tracks(settings, SITES)["selector"]
    sent = sum(t.numel() * t.element_size() for t in server.registration_template().values())
    assert sent < 20_000
    assert server.payload("site-1") == {}
    assert server.template() == {}


def test_a_site_without_sums_is_never_chosen():
    settings = small_settings(selector="statistics")
    server = server_tracks(settings, SITES)["selector"]
    torch.manual_seed(0)
    for k, site in enumerate(SITES[:2]):
        batch = [(torch.rand(8, 3, 32, 32) * (0.5 + 0.5 * k), None)]
        server.register(site, client_tracks(settings, k, 3, CPU)["selector"].register(batch))
    yhat = StatisticsSelector(settings, 3, server.final_payload("site-1"), CPU).probabilities(torch.rand(5, 3, 32, 32))
    assert torch.isfinite(yhat).all()
    assert (yhat[:, 2] == 0).all()


def test_shrinkage_with_the_best_pooled_accuracy_wins():
    """Hits: 0.02 -> 0.5 * 10 + 1.0 * 30 = 35; 0.05 -> 1.0 * 10 + 0.9 * 30 = 37; 0.1 -> 36."""
    server = server_tracks(small_settings(selector="statistics"), SITES)["selector"]
    server.close_validation(
        {
            "site-1": {"score": 1.0, "images": 10, "accuracies": [0.5, 1.0, 0.9]},
            "site-2": {"score": 1.0, "images": 30, "accuracies": [1.0, 0.9, 0.9]},
        }
    )
    assert server.shrinkage == 0.05


def test_pack_and_unpack():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert pack(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(unpack(pack(matrix), 3), matrix)


@pytest.mark.parametrize(("channels", "length"), [(3, 63), (1, 14)])
def test_descriptor_length_and_dtype(channels, length):
    row = describe(torch.rand(2, channels, 32, 48))
    assert row.shape == (2, length) == (2, descriptor_length(channels))
    assert row.dtype == torch.float64
    assert torch.isfinite(describe(torch.zeros(1, channels, 32, 32))).all(), "a black image must not break the selector"


def test_descriptor_of_a_constant_image_by_hand():
    """All pixels (0.2, 0.3, 0.5): means and quantiles are those, deviations 0, chromaticity 0.2, 0.3, 0.5 of 1.0."""
    row = describe(torch.tensor([0.2, 0.3, 0.5]).view(1, 3, 1, 1).expand(1, 3, 32, 32))[0]
    assert row[:3].tolist() == pytest.approx([0.2, 0.3, 0.5])
    assert row[3:6].tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert row[6:27].tolist() == pytest.approx([0.2] * 7 + [0.3] * 7 + [0.5] * 7)
    assert row[27:48].tolist() == pytest.approx([0.2] * 7 + [0.3] * 7 + [0.5] * 7, abs=1e-5)
