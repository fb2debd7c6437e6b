"""The synthetic hospitals: repeatable, complete, different from each other, and a folder that trains."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedsm.data.check import check_root
from fedsm.data.dataset import load_site
from fedsm.data.site_folder import list_sites
from fedsm.data.synthetic import write_sites
from fedsm.selectors.descriptor import describe
from fedsm.selectors.gaussian import StatisticsSelector, gaussian_classes, pack
from tests.helpers.small_jobs import small_settings


def digests(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(root.rglob("*.png"))}


def test_same_seed_same_bytes_and_more_does_not_change_the_first(tmp_path):
    write_sites(tmp_path / "a", sites=3, seed=1, images=14, size=48)
    write_sites(tmp_path / "b", sites=3, seed=1, images=14, size=48)
    write_sites(tmp_path / "more", sites=7, seed=1, images=20, size=48)
    write_sites(tmp_path / "other", sites=3, seed=2, images=14, size=48)
    a = digests(tmp_path / "a")
    assert a == digests(tmp_path / "b")
    more = digests(tmp_path / "more")
    assert all(more[name] == digest for name, digest in a.items())
    assert a != digests(tmp_path / "other")


def test_layout_masks_and_sizes(tmp_path):
    names = write_sites(tmp_path, sites=8, seed=0, images=20, size=48)
    assert names == list_sites(tmp_path) == [f"site-{i}" for i in range(1, 9)]
    reports = check_root(tmp_path, small_settings().task)
    assert all(report.level != "FAIL" for report in reports), reports
    counts = {report.site: report.pairs for report in reports}
    assert min(counts.values()) >= 12 and len(set(counts.values())) > 3, "hospitals are not of one size"
    for site in names:
        for path in (tmp_path / site / "masks").iterdir():
            mask = np.asarray(Image.open(path))
            assert mask.shape == (48, 48) and set(np.unique(mask)) == {0, 1, 2}


def test_sites_can_be_told_apart(tmp_path):
    """The statistics selector finds the hospital of images that it has not seen."""
    sites = write_sites(tmp_path, sites=6, seed=0, images=24, size=64)
    settings = small_settings(size=64)
    parts = [load_site(tmp_path / s, s, settings) for s in sites]
    sums = []
    for part in parts:
        rows = describe(part["train"].images)
        n = torch.tensor(float(len(rows)), dtype=torch.float64)
        sums.append({"n": n, "sum": rows.sum(0), "outer": pack(rows.T @ rows)})
    tensors = gaussian_classes(sums) | {"shrinkage": torch.tensor(0.1)}
    selector = StatisticsSelector(settings, 6, tensors, torch.device("cpu"))
    hits = [(selector.probabilities(p["test"].images).argmax(1) == k).float() for k, p in enumerate(parts)]
    assert torch.cat(hits).mean() > 0.9
