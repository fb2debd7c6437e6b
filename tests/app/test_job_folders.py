"""Every folder of `jobs/` trains under plain `nvflare simulator`, on files of its own task's kind."""

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from app_fedsm.config.build import available
from app_fedsm.jobs import paper_jobs
from tests.helpers.folders import JOBS
from tests.helpers.plain_simulator import plain_simulator
from tests.helpers.small_jobs import small_settings, write_site

SITES = [f"site-{i + 1}" for i in range(4)]  # prostate's lam of 0.3 is refused to fewer


def write_retinal(folder: Path, seed: int) -> None:
    write_site(folder, 12, seed)


def write_nuclei(folder: Path, seed: int) -> None:
    """Discs, white on black in the mask."""
    write_site(folder, 12, seed)
    for path in (folder / "masks").iterdir():
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask > 0, 255, 0).astype(np.uint8)).save(path)


def write_breast(folder: Path, seed: int) -> None:
    """The same in grey."""
    write_nuclei(folder, seed)
    for path in (folder / "images").iterdir():
        Image.open(path).convert("L").save(path)


def write_prostate(folder: Path, seed: int) -> None:
    """Grey volumes of four slices with a bright ball."""
    rng = np.random.default_rng(seed)
    gain = rng.uniform(200, 2000)
    grid = np.mgrid[:40, :36, :4].astype(np.float32)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(6):
        centre = rng.uniform((15, 14, 1), (25, 22, 2)).astype(np.float32)
        mask = np.linalg.norm((grid.T - centre) / (9, 8, 3), axis=-1).T < 1
        image = gain * (0.3 + 0.5 * mask + rng.normal(0, 0.05, mask.shape))
        for part, voxels in (("images", image.astype(np.int16)), ("masks", mask.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(voxels, np.diag([0.6, 0.6, 3, 1])), folder / part / f"case_{i}.nii.gz")


WRITERS = {"retinal": write_retinal, "nuclei": write_nuclei, "prostate": write_prostate, "breast": write_breast}


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[str, Path]:
    """A data root for each task."""
    roots = {task: tmp_path_factory.mktemp(task) for task in available("tasks")}
    for task, root in roots.items():
        for seed, site in enumerate(SITES):
            WRITERS[task](root / site, seed)
    return roots


@pytest.mark.slow
@pytest.mark.parametrize("name", paper_jobs())
def test_every_job_folder_runs_under_plain_nvflare_simulator(tmp_path, roots, name):
    """The folder as it is, but for pixels, rounds and the networks' width."""
    job = shutil.copytree(JOBS / name, tmp_path / name)
    config = job / "app" / "config" / "config_fed_server.json"
    content = json.loads(config.read_text())
    settings = content["workflows"][0]["args"]["settings"]
    task, method = settings["task"]["name"], settings["method"]
    small = small_settings(task=task).to_dict()
    settings["task"] |= {key: small["task"][key] for key in ("unet", "selector_net")}
    settings |= {key: small[key] for key in ("size", "batch_size")} | {"rounds": 2}
    if "rounds" in settings["tracks"].get("selector", {}):
        settings["tracks"]["selector"]["rounds"] = 1
    config.write_text(json.dumps(content))

    folder = plain_simulator(job, tmp_path, roots[task], threads=len(SITES))

    results = json.loads((folder / "results.json").read_text())
    assert name == f"{method}_{task}".replace("-", "_")
    assert (results["task"], results["method"], results["sites"]) == (task, method, SITES)
    assert results["validation"]["history"][-1]["answered"] == SITES and not results["missing_in_evaluation"]
    tested = [row for row in results["test"].values() if "per_label" in row]
    assert tested and all(set(row["per_site"]) == set(SITES) for row in tested)
    assert all(set(row["per_label"]) == set(settings["task"]["labels"]) for row in tested)
