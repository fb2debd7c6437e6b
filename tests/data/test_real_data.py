"""Real images go the whole way: check, split, load, one federated round. They stay where they are, untouched."""

import json
from pathlib import Path

import nibabel
import pytest

from fedsm.data.check import check_root
from fedsm.data.dataset import load_site
from fedsm.data.findings import format_reports
from fedsm.data.patients import patients_of
from fedsm.data.site_folder import list_pairs, list_sites
from fedsm.data.split import PARTS
from tests.helpers.federation import Federation, results_of
from tests.helpers.real_data import NUCLEI, PROSTATE, needs_nuclei, needs_prostate
from tests.helpers.small_jobs import small_settings


@pytest.fixture(scope="module")
def two_hospitals(tmp_path_factory) -> Path:
    """The six volumes of one hospital as two sites of three: it proves the 3D path, no claim on several hospitals."""
    root = tmp_path_factory.mktemp("prostate")
    for i, pair in enumerate(list_pairs(PROSTATE, "prostatex")):
        for part, path in (("images", pair.image), ("masks", pair.mask)):
            folder = root / f"site-{i % 2 + 1}" / part
            folder.mkdir(parents=True, exist_ok=True)
            (folder / path.name).symlink_to(path)
    return root


def train_one_round(root: Path, folder: Path, **given) -> dict:
    """One round of FedSM with all sites; returns the results."""
    before = sorted(root.rglob("*"))
    federation = Federation(folder, root, small_settings(rounds=1, batch_size=16, **given), list_sites(root)).run()
    assert federation.panic is None
    assert sorted(root.rglob("*")) == before, "nothing is written to a site's data folder"
    return results_of(federation)


@needs_nuclei
def test_nuclei_check_and_patients():
    """Four groups of 48. The names are numbers and nothing in them is a patient: each picture is one of its own,
    which holds as far as can be seen, since no picture is there twice."""
    task = small_settings(task="nuclei").task
    reports = check_root(NUCLEI, task)
    assert [r.pairs for r in reports] == [48] * 4
    assert all(r.level != "FAIL" for r in reports), format_reports(reports)
    assert [r.site for r in reports if r.level == "WARN"] == ["histology"], "white where the others are black"
    hashes = [digest for r in reports for digest in r.hashes.values()]
    assert len(set(hashes)) == len(hashes) == 192
    for report in reports:
        stems = [pair.stem for pair in list_pairs(NUCLEI / report.site, report.site)]
        assert patients_of(NUCLEI / report.site, stems, task.patient_pattern or None, report.site) == stems
        assert stems == [f"{i:03d}" for i in range(48)]


@needs_nuclei
def test_nuclei_split_and_load(tmp_path):
    for site in list_sites(NUCLEI):
        parts = load_site(NUCLEI / site, site, small_settings(task="nuclei"), tmp_path / site)
        assert [len(parts[p]) for p in PARTS] == [24, 12, 12]
        split = json.loads((tmp_path / site / "seed_0" / "splits.json").read_text())
        assert sorted(sum(split.values(), [])) == [f"{i:03d}" for i in range(48)]
        train = parts["train"]
        assert train.images.shape == (24, 3, 32, 32) and train.labels.shape == (24, 1, 32, 32)
        assert 0.02 < train.labels.float().mean() < 0.4, "masks are 0 and 255"


@needs_nuclei
def test_nuclei_training_round(tmp_path):
    results = train_one_round(NUCLEI, tmp_path, task="nuclei")
    assert set(results["test"]["global"]["per_site"]) == {"fluor-256", "fluor-360", "fluor-696", "histology"}
    assert results["test"]["selector_accuracy"]["per_site"]["histology"] == 1, "stained tissue is like nothing else"


@needs_prostate
def test_prostate_check_split_and_load(two_hospitals):
    settings = small_settings(task="prostate")
    reports = check_root(two_hospitals, settings.task)
    assert [(r.site, r.pairs, r.level) for r in reports] == [("site-1", 3, "WARN"), ("site-2", 3, "WARN")]
    assert all([f.what for f in r.findings] == ["only 3 patients"] for r in reports), format_reports(reports)
    for report in reports:
        folder = two_hospitals / report.site
        slices = [nibabel.load(pair.image).shape[2] for pair in list_pairs(folder, report.site)]
        parts = load_site(folder, report.site, settings)
        assert sorted(len(part) for part in parts.values()) == sorted(slices), "a volume is in one part, all of it"
        for part in parts.values():
            covered = part.labels[:, 0].flatten(1).any(1)
            assert 5 < covered.sum() < len(part), "the prostate is in some slices, not at both ends"
            assert part.images.min() >= 0 and part.images.max() > 0.9


@needs_prostate
def test_prostate_training_round(two_hospitals, tmp_path):
    results = train_one_round(two_hospitals, tmp_path, task="prostate", lam=0.5)  # the task's 0.3 is for 4 and more
    assert set(results["test"]["super_model"]["per_label"]) == {"prostate"}
    assert set(results["test"]["super_model"]["per_site"]) == {"site-1", "site-2"}
