"""The losses of a job, by hand."""

import math

import pytest
import torch

from fedsm.tracks import KINDS, client_tracks
from fedsm.tracks.base import SiteContext
from fedsm.tracks.learner import SegmentationLoss
from tests.helpers.small_jobs import SITES, small_settings
from tests.helpers.track_run import job_with

# Two pixels, of which the first is the label; p = 0.75 and 0.25 (logits +-log 3).
LOGITS = torch.tensor([math.log(3), -math.log(3)]).view(1, 1, 1, 2)
LABELS = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
DICE = 1 - 2 * 0.75 / (1 + 1)  # 2 sum p y / (sum p + sum y), the e of 1e-5 aside
CROSS_ENTROPY = -math.log(0.75)  # both pixels have 0.75 on what is true


def test_dice():
    """1 - 1.5 / 2 = 0.25."""
    assert SegmentationLoss("dice")(LOGITS, LABELS).item() == pytest.approx(DICE, abs=1e-5) == 0.25


def test_dice_and_cross_entropy():
    """(0.25 + 0.2877) / 2 = 0.2688, from logits and from probabilities."""
    expected = pytest.approx((DICE + CROSS_ENTROPY) / 2, abs=1e-5)
    assert SegmentationLoss("dice+ce")(LOGITS, LABELS).item() == expected
    assert SegmentationLoss("dice+ce", logits=False)(LOGITS.sigmoid(), LABELS).item() == expected
    assert expected == 0.26884


@pytest.mark.parametrize("kind", ["dice", "dice+ce"])
def test_each_image_s_loss_is_its_own_and_their_mean_is_the_batch_s(kind):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, 5, generator=generator)
    labels = (torch.rand(3, 2, 4, 5, generator=generator) > 0.5).float()
    loss = SegmentationLoss(kind)
    own = loss.per_image(logits, labels)
    assert torch.allclose(own, torch.stack([loss(logits[i : i + 1], labels[i : i + 1]) for i in range(3)]))
    assert own.mean().item() == pytest.approx(loss(logits, labels).item())


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.track != "selector"])
def test_every_u_net_learns_with_the_job_s_loss(kind):
    settings = job_with(kind).replace(loss="dice+ce")
    tracks = client_tracks(settings, SiteContext(0, len(SITES), torch.device("cpu")))
    losses = [track.segmentation_loss(LOGITS, LABELS).item() for track in tracks.values()]
    assert losses == [pytest.approx(0.26884, abs=1e-5)] * len(tracks)


def test_extra_labels_images_by_the_job_s_loss():
    """Half of the pixels are the label. p = 0.5 and 0.9 everywhere: Dice loss 0.5 and 0.357, cross entropy 0.693 and
    1.204. By Dice alone the second is better, with the cross entropy the first (0.597 against 0.780)."""
    labels = torch.tensor([1.0, 0.0] * 8).view(1, 1, 4, 4)
    first, second = (torch.full_like(labels, p).logit() for p in (0.5, 0.9))
    for kind, better in (("dice", second), ("dice+ce", first)):
        loss = SegmentationLoss(kind).per_image
        assert min((first, second), key=lambda z, loss=loss: loss(z, labels).item()) is better


def test_the_ensemble_s_mixture_is_given_as_probabilities():
    settings = small_settings(method="fedsm-ensemble", loss="dice+ce")
    track = client_tracks(settings, SiteContext(0, 2, torch.device("cpu")))["selector"]
    track.mixture = lambda images: LOGITS.sigmoid()
    assert track.loss(LOGITS, LABELS, None).item() == pytest.approx(0.26884, abs=1e-5)
