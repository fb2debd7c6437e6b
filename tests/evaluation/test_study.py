"""Which images are shown, and in which space the selector's features lie."""

import torch

from fedsm.data.dataset import load_site
from fedsm.evaluation.overlays import overlay, pick
from fedsm.evaluation.runs import short_names
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes
from tests.helpers.small_jobs import small_settings


def test_pick_by_hand():
    """0.9, 0.7, 0.5, 0.1 in order: the median of four is the third."""
    assert pick(torch.tensor([0.5, 0.9, 0.1, 0.7])) == {"best": 1, "median": 0, "worst": 2}
    assert pick(torch.tensor([0.5])) == {"best": 0, "median": 0, "worst": 0}


def test_overlay_outlines_the_mask_only():
    masks = torch.zeros(1, 8, 8, dtype=torch.bool)
    masks[0, 2:6, 2:6] = True
    plain, drawn = overlay(torch.full((1, 8, 8), 0.5), masks[:0], 64), overlay(torch.full((1, 8, 8), 0.5), masks, 64)
    assert plain.getpixel((32, 32)) == drawn.getpixel((32, 32)) == (128, 128, 128), "the inside is not painted"
    assert drawn.getpixel((16, 32)) == (0, 255, 120) and drawn.getpixel((4, 4)) == (128, 128, 128)


def test_features_have_the_selectors_distances(data_root):
    """|features(x)|^2 is the Mahalanobis distance to the site that they are counted from."""
    settings = small_settings()
    images = {s: load_site(data_root / s, s, settings)["train"].images for s in ("site-1", "site-2")}
    from fedsm.selectors.descriptor import describe
    from fedsm.selectors.gaussian import pack

    rows = [describe(x) for x in images.values()]
    sums = [{"n": torch.tensor(float(len(r))), "sum": r.sum(0), "outer": pack(r.T @ r)} for r in rows]
    tensors = gaussian_classes(sums) | {"shrinkage": torch.tensor(0.1)}
    selector = StatisticsSelector(settings, 2, tensors, torch.device("cpu"))
    features = selector.features(images["site-2"])
    assert torch.allclose(features.square().sum(1), selector.distances(images["site-2"])[:, 0])


def test_names_of_runs(tmp_path):
    assert short_names([tmp_path / "A" / "seed-0", tmp_path / "B" / "seed-0"]) == ["A", "B"]
    assert short_names([tmp_path / "A" / "seed-0", tmp_path / "A" / "seed-1"]) == ["seed-0", "seed-1"]
    assert short_names([tmp_path / "A" / "x", tmp_path / "B" / "x", tmp_path / "B" / "y"]) == ["A/x", "B/x", "B/y"]
    assert short_names([tmp_path / "only"]) == ["only"]
