"""The closed-form selector: by hand, against pooled data, and at its edges."""

import numpy as np
import pytest
import torch

from fedsm.core.errors import UserError
from fedsm.selectors.descriptor import build_descriptor, describe, descriptor_length
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, pack, unpack
from fedsm.selectors.network_features import encoder_weights
from fedsm.tracks import build_inference_selector, check_tracks, client_tracks, server_tracks
from fedsm.tracks.base import DELIVER, REGISTER, TRAIN, SiteContext
from tests.helpers.small_jobs import SITES, small_settings

CPU = torch.device("cpu")


def settings_with(descriptor: str):
    return small_settings(selector="statistics", overrides=[f"tracks.selector.descriptor={descriptor}"])


def site_images() -> list[torch.Tensor]:
    """Twelve images a site, darker at the first."""
    torch.manual_seed(0)
    return [torch.rand(12, 3, 32, 32) * (0.4 + 0.2 * k) for k in range(3)]


def batches_of(images: torch.Tensor) -> list[tuple]:
    return [(part, None) for part in images.split(5)]


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
    monkeypatch.setattr(
        "fedsm.selectors.gaussian.build_descriptor", lambda *_: lambda x: torch.ones(1, 1, dtype=torch.float64)
    )
    tensors = {
        "means": torch.tensor([[0.0], [4.0]], dtype=torch.float64),
        "deviation": torch.tensor([2.0], dtype=torch.float64),
        "correlation": torch.ones(1, 1, dtype=torch.float64),
        "shrinkage": torch.tensor(0.02),
    }
    selector = StatisticsSelector(None, 2, tensors, CPU)
    assert selector.distances(None).flatten().tolist() == pytest.approx([0.25, 2.25])
    assert selector.probabilities(None)[0, 0].item() == pytest.approx(0.7311, abs=1e-4)


@pytest.mark.parametrize(("descriptor", "tolerance"), [("image", 1e-9), ("image+random", 1e-5)])
def test_federated_equals_pooled_on_images(descriptor, tolerance):
    """Through both halves of the track: the same probabilities as a selector made of all images in one place."""
    images = site_images()
    settings = settings_with(descriptor)
    server = server_tracks(settings, SITES)["selector"]
    for k, site in enumerate(SITES):
        server.accept(
            REGISTER,
            site,
            client_tracks(settings, SiteContext(k, 3, CPU))["selector"].send(REGISTER, batches_of(images[k])),
        )
    payload = server.payload(DELIVER, "site-1")

    rows = build_descriptor(descriptor, settings, {})
    scalars = {name: payload[name] for name in ("shrinkage", "descriptor")}
    pooled = gaussian_classes([sums_of(rows(i)) for i in images]) | scalars
    new = torch.rand(4, 3, 32, 32)
    ours = StatisticsSelector(settings, 3, payload, CPU).probabilities(new)
    theirs = StatisticsSelector(settings, 3, pooled, CPU).probabilities(new)
    assert torch.allclose(ours, theirs, atol=tolerance)
    known = torch.cat([StatisticsSelector(settings, 3, payload, CPU).probabilities(i).argmax(1) for i in images])
    assert (known == torch.arange(3).repeat_interleave(12)).float().mean() > 0.95


@pytest.mark.parametrize(
    ("descriptor", "registration", "delivery"),
    [
        ("image", 8 * (1 + 63 + 63 * 64 // 2), 0),  # 16,640 bytes
        ("image+random", 8 * (1 + 559 + 559 * 560 // 2), 0),  # 1,256,640 bytes
        ("encoder", 0, 8 * (1 + 56 + 56 * 57 // 2)),  # 2 * (4 + 8 + 16) numbers of the small U-Net
    ],
)
def test_statistics_are_small_and_travel_once(descriptor, registration, delivery):
    server = server_tracks(settings_with(descriptor), SITES)["selector"]

    def size(template):
        return sum(t.numel() * t.element_size() for t in template.values())

    assert size(server.expects(REGISTER)) == registration
    assert size(server.expects(DELIVER)) == delivery
    assert server.payload(TRAIN, "site-1") == {}
    assert server.expects(TRAIN) == {}


def test_image_is_the_default_and_what_a_super_model_without_the_number_means():
    settings = small_settings(selector="statistics")
    server = server_tracks(settings, SITES)["selector"]
    server.accept(REGISTER, "site-1", sums_of(describe(site_images()[0])))
    payload = server.payload(DELIVER, "site-1")
    assert payload.pop("descriptor").item() == 0
    other = settings_with("image+random")
    assert StatisticsSelector(other, 3, payload, CPU).describe is describe


def test_a_constant_feature_is_switched_off_whatever_its_size():
    """1000 and what float32 makes of it: the difference of two sums of 1e8 leaves noise, not zero."""
    torch.manual_seed(0)
    rows = [torch.cat([torch.rand(50, 1) + k, 1000 + 1e-5 * torch.rand(50, 1)], 1) for k in range(2)]
    rows[0][:, 1] += 1e-4 * torch.rand(50)  # float32 rounds to steps of 6e-5
    classes = gaussian_classes([sums_of(r) for r in rows])
    assert classes["deviation"].tolist() == [pytest.approx(0.29, abs=0.05), 1e6]
    assert torch.isfinite(classes["correlation"]).all()
    assert classes["correlation"][0, 1].abs() < 1e-6


def after_training(settings, images):
    """The servers' halves after the last round, when the sites have handed over their sums."""
    servers = server_tracks(settings, SITES)
    for k, site in enumerate(SITES):
        clients = client_tracks(settings, SiteContext(k, 3, CPU))
        assert clients["selector"].send(REGISTER, batches_of(images[k])) == {}
        clients["global"].receive(DELIVER, servers["global"].payload(DELIVER, site))
        clients["selector"].receive(DELIVER, servers["selector"].payload(DELIVER, site))
        assert clients["selector"].validate(DELIVER, batches_of(images[k])) == {}
        servers["selector"].accept(DELIVER, site, clients["selector"].send(DELIVER, batches_of(images[k])))
    return servers


def test_encoder_federated_equals_pooled_and_carries_its_weights():
    images = site_images()
    settings = settings_with("encoder")
    servers = after_training(settings, images)
    payload = servers["selector"].payload(DELIVER, "site-1")

    encoder = encoder_weights(settings.task, servers["global"].weights)
    rows = build_descriptor("encoder", settings, encoder)
    pooled = gaussian_classes([sums_of(rows(i)) for i in images])
    for name in ("means", "deviation", "correlation"):
        assert torch.allclose(payload[name], pooled[name], atol=1e-6)
    assert payload["shrinkage"].item() == pytest.approx(0.1)

    selector = build_inference_selector(settings, 3, payload, CPU)
    assert torch.equal(selector.describe(images[0]), rows(images[0]))
    known = torch.cat([selector.probabilities(i).argmax(1) for i in images])
    assert (known == torch.arange(3).repeat_interleave(12)).float().mean() > 0.9


def test_a_further_round_makes_the_encoder_s_sums_old_and_no_others():
    images = site_images()
    late = after_training(settings_with("encoder"), images)["selector"]
    late.close(TRAIN)
    assert late.payload(DELIVER, "site-1") == {}
    early = server_tracks(settings_with("image"), SITES)["selector"]
    early.accept(REGISTER, "site-1", sums_of(describe(images[0])))
    early.close(TRAIN)
    assert early.payload(DELIVER, "site-1")


def test_a_delivery_of_no_images_makes_no_class():
    server = after_training(settings_with("encoder"), site_images())["selector"]
    server.close(TRAIN)
    server.accept(DELIVER, "site-1", server.expects(DELIVER))
    assert server.payload(DELIVER, "site-1") == {}


def test_encoder_needs_one_global_network():
    alone = small_settings(overrides=["tracks={selector: {kind: selector_statistics, descriptor: encoder}}"])
    with pytest.raises(UserError, match="add a track `global`"):
        check_tracks(alone, SITES)
    kept = "{global: {kind: local}, selector: {kind: selector_statistics, descriptor: encoder}}"
    with pytest.raises(UserError, match="'global' cannot be of kind 'local'"):
        server_tracks(small_settings(overrides=[f"tracks={kept}"]), SITES)


def test_an_unknown_descriptor_is_refused():
    with pytest.raises(UserError, match="descriptor must be one of image, image\\+random, encoder"):
        check_tracks(settings_with("pixels"), SITES)


def test_a_site_without_sums_is_never_chosen():
    settings = small_settings(selector="statistics")
    server = server_tracks(settings, SITES)["selector"]
    torch.manual_seed(0)
    for k, site in enumerate(SITES[:2]):
        batch = [(torch.rand(8, 3, 32, 32) * (0.5 + 0.5 * k), None)]
        server.accept(REGISTER, site, client_tracks(settings, SiteContext(k, 3, CPU))["selector"].send(REGISTER, batch))
    yhat = StatisticsSelector(settings, 3, server.payload(DELIVER, "site-1"), CPU).probabilities(
        torch.rand(5, 3, 32, 32)
    )
    assert torch.isfinite(yhat).all()
    assert (yhat[:, 2] == 0).all()


def test_shrinkage_with_the_best_pooled_accuracy_wins():
    """Hits: 0.02 -> 0.5 * 10 + 1.0 * 30 = 35; 0.05 -> 1.0 * 10 + 0.9 * 30 = 37; 0.1 -> 36."""
    server = server_tracks(small_settings(selector="statistics"), SITES)["selector"]
    server.close(
        DELIVER,
        {
            "site-1": {"score": 1.0, "images": 10, "accuracies": [0.5, 1.0, 0.9]},
            "site-2": {"score": 1.0, "images": 30, "accuracies": [1.0, 0.9, 0.9]},
        },
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
