"""The job folders are what the recipe exports; BYOC carries the whole package."""

import filecmp
import json
from pathlib import Path

import pytest

import fedsm
from app_fedsm.cli import main

JOBS = Path(__file__).parents[2] / "jobs"


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


@pytest.mark.parametrize(("task", "lam"), [("retinal", 0.7), ("prostate", 0.3)])
def test_job_folder_is_in_step_with_the_recipe(tmp_path, task, lam):
    """`make jobs` writes them again."""
    assert main(["job", "export", "--task", task, "--selector", "gradient", "--out", str(tmp_path)]) == 0
    fresh, kept = tmp_path / f"fedsm_{task}", JOBS / f"fedsm_{task}"
    assert files_of(fresh) == files_of(kept)
    assert not filecmp.cmpfiles(fresh, kept, files_of(fresh), shallow=False)[1]

    assert not any("custom" in name for name in files_of(kept)), "the job carries no code"
    server = json.loads((kept / "app/config/config_fed_server.json").read_text())
    settings = server["workflows"][0]["args"]["settings"]
    assert (settings["size"], settings["rounds"], settings["task"]["lam"]) == (256, 150, lam)
    assert settings["task"]["selector_net"] == {"head": "fc"}


def test_every_job_folder_is_tested():
    assert sorted(p.name for p in JOBS.iterdir() if p.is_dir()) == ["fedsm_prostate", "fedsm_retinal"]


def test_byoc_carries_every_file_of_the_package(tmp_path):
    arguments = ["job", "export", "--task", "retinal", "--byoc", "--name", "carried", "--out", str(tmp_path)]
    assert main(arguments) == 0
    package = Path(fedsm.__file__).parent
    assert files_of(tmp_path / "carried/app/custom/fedsm") == files_of(package)
    for name in files_of(package):
        assert (tmp_path / "carried/app/custom/fedsm" / name).read_bytes() == (package / name).read_bytes()
