"""Membership inference: the formulas by hand, limits, and a model that has learnt its images by heart."""

import math

import numpy as np
import pytest
import torch

from fedsm.core.settings import JobSettings
from fedsm.evaluation.membership import (
    CALIBRATED,
    LOSS,
    Losses,
    auc,
    auc_interval,
    audit_of,
    confidence,
    losses_of,
    scores,
)


def test_auc_by_hand():
    """Pairs (member, other): 3>2, 3>1, 1<2, 1=1: (1 + 1 + 0 + 1/2) / 4 = 0.625."""
    assert auc(np.array([3.0, 1.0]), np.array([2.0, 1.0])) == 0.625
    assert auc(np.array([2.0, 3.0]), np.array([1.0, 0.0])) == 1.0
    assert auc(np.array([0.0]), np.array([1.0])) == 0.0
    assert auc(np.zeros(5), np.zeros(3)) == 0.5, "all alike: guessing"


def test_confidence_by_hand():
    """l = log 2: p = 1/2, phi = log 1 = 0. l = log 4: p = 1/4, phi = log(1/3). A loss of 0 stays finite."""
    assert confidence(np.array([math.log(2), math.log(4)])) == pytest.approx([0.0, math.log(1 / 3)])
    assert 20 < confidence(np.array([0.0]))[0] < 21


def test_scores_by_hand():
    """Target log 2 (phi 0); references log 4 (phi -log 3) and log 2 (phi 0): calibrated 0 - (-log 3 + 0) / 2."""
    by_model = {name: np.array([math.log(n)]) for name, n in (("global", 2), ("personal.b", 4), ("personal.c", 2))}
    found = scores(Losses(["p"], by_model), "global", ["personal.b", "personal.c"])
    assert found[LOSS] == pytest.approx([-math.log(2)]) and found[CALIBRATED] == pytest.approx([math.log(3) / 2])
    assert set(scores(Losses(["p"], by_model), "global", [])) == {LOSS}


def test_calibration_takes_away_what_is_hard_for_every_model():
    """Members are the hard images: by the loss alone the attacker is worse than guessing, calibrated it is right."""
    members = Losses(list("abc"), {"personal.s": np.array([0.5, 0.6, 0.7]), "personal.r": np.array([0.9, 1.0, 1.1])})
    others = Losses(list("xyz"), {"personal.s": np.array([0.2, 0.3, 0.4]), "personal.r": np.array([0.2, 0.3, 0.4])})
    row = audit_of("s", members, others, 0)["models"]["personal_own"]
    assert row[LOSS]["auc"] == 0.0 and row[CALIBRATED]["auc"] == 1.0


def test_interval_is_by_patient():
    """Two patients on each side; a wins over x (2 images) and y (1), b over none: a draw's AUC is the share of a.

    P(aa) = P(bb) = 1/4, P(ab) = 1/2, whatever is drawn of x and y: 0, 0.5 and 1, so the interval is [0, 1].
    """
    members, others = np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.5])
    found = auc_interval(members, others, (["a", "a", "b", "b"], ["x", "x", "y"]), 0, "s")
    assert found == {"auc": 0.5, "low": 0.0, "high": 1.0}
    assert found == auc_interval(members, others, (["a", "a", "b", "b"], ["x", "x", "y"]), 0, "s")
    assert auc_interval(members, others, (["a"] * 4, ["x", "x", "y"]), 0, "s")["low"] is None, "a single patient"
    assert auc_interval(members, others, (["a", "a", "b", "b"], ["x", "x", "y"]), 0, "s", bounds=False)["high"] is None


def test_interval_of_the_weights_of_patients_by_hand():
    """The same draws, summed in a loop over pairs of images."""
    from fedsm.evaluation.bootstrap import draw_patients

    rng = np.random.default_rng(1)
    members, others = rng.normal(0.3, 1, 9), rng.normal(0, 1, 7)
    patients = [f"m{i // 2}" for i in range(9)], [f"o{i // 3}" for i in range(7)]
    (rows, drawn_rows), (columns, drawn_columns) = (
        draw_patients(p, 5, "s", part) for p, part in zip(patients, ("members", "others"), strict=True)
    )
    values = []
    for drawn_m, drawn_o in zip(drawn_rows, drawn_columns, strict=True):
        m = np.concatenate([members[rows == i] for i in drawn_m])
        o = np.concatenate([others[columns == i] for i in drawn_o])
        values.append(auc(m, o))
    found = auc_interval(members, others, patients, 5, "s")
    assert [found["low"], found["high"]] == pytest.approx(np.quantile(values, [0.025, 0.975]))


def test_bounds_of_few_patients_stay_at_the_site():
    part = Losses(list("abc"), {"global": np.array([0.1, 0.2, 0.3])})
    row = audit_of("s", part, part, 0, private=True)["models"]["global"]
    assert row[LOSS] == {"auc": 0.5, "low": None, "high": None} and row[CALIBRATED] is None
    assert audit_of("s", part, part, 0)["models"]["global"][LOSS]["low"] is not None, "at home they are shown"


class _Case:
    def __init__(self, images, labels, patient):
        self.images, self.labels, self.patient = images, labels, patient


@pytest.mark.parametrize("loss", ["dice", "dice+ce"])
def test_losses_are_the_jobs_own(loss):
    """The mean over a part is the loss of it as one batch."""
    from fedsm.evaluation.candidates import Candidates
    from fedsm.nets import build_unet
    from fedsm.tracks.learner import SegmentationLoss
    from tests.helpers.small_jobs import small_settings

    settings: JobSettings = small_settings(loss=loss)
    cpu = torch.device("cpu")
    net = build_unet(settings.task).eval()
    models = Candidates(settings, ["site-1", "site-2"], {"global": net.state_dict()}, cpu)
    images, labels = torch.rand(6, 3, 32, 32), (torch.rand(6, 2, 32, 32) > 0.5).to(torch.uint8)
    seen = []
    found = losses_of(models, settings, [_Case(images, labels, "p")], cpu, lambda: seen.append(1))
    with torch.no_grad():
        whole = SegmentationLoss(loss)(net(images), labels.float()).item()
    assert found.by_model["global"].mean() == pytest.approx(whole, abs=1e-6) and found.patients == ["p"] * 6 and seen
