"""Row 18: `cache_budget` did not bound a single entry; a job's `size` could fill a hospital's disk."""

from pathlib import Path

import nibabel
import numpy as np
import pytest

from app_fedsm.config.build import build_settings
from fedsm.data import dataset
from fedsm.data.cache import SiteCache
from fedsm.data.dataset import load_site
from tests.helpers.assertions import same_images
from tests.helpers.hostile_server import SITE, real_site, register
from tests.helpers.small_jobs import small_settings, write_site

BUDGET = 1_000_000


@pytest.fixture
def site(tmp_path) -> Path:
    write_site(tmp_path / "data", 12, seed=0)
    return tmp_path / "data"


def on_disk(folder: Path) -> int:
    """Bytes of all that is below a folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def test_an_entry_above_the_budget_is_not_written(tmp_path, site, caplog, monkeypatch):
    """12 images of 300 px take 15 MB. Not even for a moment are they on disk."""
    cache, peaks = SiteCache(tmp_path / "cache" / "a", BUDGET), []
    original = dataset.load_pair
    monkeypatch.setattr(dataset, "load_pair", lambda *a: peaks.append(on_disk(tmp_path / "cache")) or original(*a))
    mapped = load_site(site, "a", small_settings(size=300), cache=cache)
    assert max(peaks) <= BUDGET and on_disk(tmp_path / "cache") <= BUDGET
    assert sum("raise it in fedsm_site.yaml" in r.getMessage() for r in caplog.records) == 1
    assert same_images(mapped, load_site(site, "a", small_settings(size=300))), "training goes on from memory"


def test_a_job_at_a_site_stays_within_it(tmp_path, site):
    place = real_site(tmp_path / "site", site, cache_dir=str(tmp_path / "cache"), cache_budget=BUDGET)
    for size in (32, 64, 200, 40, 400):
        register(place, small_settings(selector="statistics", size=size))
        held = [on_disk(entry) for entry in (tmp_path / "cache" / SITE).iterdir() if entry.is_dir()]
        assert held and sum(held) <= BUDGET


def test_volumes_are_counted_by_their_headers(tmp_path):
    """20 slices a volume along the first axis of the file, which the reader turns to be the last."""
    turned = np.array([[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])
    for part, dtype in (("images", np.float32), ("masks", np.uint8)):
        (tmp_path / "mr" / part).mkdir(parents=True)
        for number in range(4):
            array = (np.random.default_rng(number).random((20, 16, 16)) > 0.5).astype(dtype)
            nibabel.save(nibabel.Nifti1Image(array, turned), tmp_path / "mr" / part / f"p{number}.nii.gz")
    settings = build_settings("prostate", "fedsm", size=64)
    need = 80 * 64 * 64 * 5
    for budget, built in ((need // 2, False), (need + 1000, True)):
        folder = tmp_path / f"cache_{budget}"
        parts = load_site(tmp_path / "mr", "a", settings, cache=SiteCache(folder, budget))
        assert sum(map(len, parts.values())) == 80
        assert bool(list(folder.glob("*/manifest.json"))) == built


def test_headers_that_lie_do_not_help(tmp_path, site, monkeypatch):
    monkeypatch.setattr(dataset, "slice_count", lambda path: 0)
    load_site(site, "a", small_settings(size=300), cache=SiteCache(tmp_path / "cache" / "a", BUDGET))
    assert on_disk(tmp_path / "cache") <= BUDGET


def test_a_budget_that_was_lowered_is_kept_too(tmp_path, site):
    folder = tmp_path / "cache" / "a"
    load_site(site, "a", small_settings(size=300), cache=SiteCache(folder, 10**9))
    assert on_disk(folder) > BUDGET
    load_site(site, "a", small_settings(size=300), cache=SiteCache(folder, BUDGET))
    assert on_disk(folder) <= BUDGET
