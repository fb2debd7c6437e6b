"""A job folder that version 0.1 exported names classes where they no longer are: it is told what to do."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app_fedsm.runs.workspace import prepare_workspace
from fedsm.core.components import SERVER_CLASSES, SITE_CLASSES
from fedsm.core.moved import MOVED
from tests.helpers.small_jobs import SITES

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.mark.parametrize("path", MOVED)
def test_an_old_class_refuses_and_names_the_new_one(path):
    module, _, name = path.rpartition(".")
    with pytest.raises(RuntimeError, match=r"exported by fedsm 0\.1.*`fedsm job export`") as refused:
        getattr(importlib.import_module(module), name)(settings={})
    assert MOVED[path] in str(refused.value)
    new, _, name = MOVED[path].rpartition(".")
    assert hasattr(importlib.import_module(new), name)
    assert path in (*SERVER_CLASSES, *SITE_CLASSES), "FLARE would say no more than that the class is not allowed"


def test_plain_simulator_says_so(tmp_path, data_root):
    job = tmp_path / "job"
    shutil.copytree(JOBS / "fedsm_nuclei", job)
    for config in job.glob("app*/config/*.json"):
        text = config.read_text()
        for old, new in MOVED.items():
            text = text.replace(new, old)
        config.write_text(text)
    assert any("fedsm.server.controller" in json.dumps(json.loads(p.read_text())) for p in job.rglob("*.json"))
    prepare_workspace(tmp_path / "ws", data_root, threads=len(SITES))
    command = [Path(sys.executable).parent / "nvflare", "simulator", job, "-w", tmp_path / "ws", "-n", "3", "-t", "3"]
    done = subprocess.run(map(str, command), capture_output=True, text=True, timeout=600)
    assert "export it anew with `fedsm job export`" in done.stdout + done.stderr
    assert done.returncode != 0
