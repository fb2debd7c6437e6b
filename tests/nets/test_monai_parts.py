"""MONAI is loaded without optional packages where the process is ours, and whole in everybody else's."""

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest

import fedsm.flare  # noqa: F401  # whose processes are ours, too
from fedsm.nets.monai_parts import wants_whole

LOADED = """
import json, sys
import fedsm.nets
heavy = [name for name in ("ignite", "matplotlib", "mlflow") if name in sys.modules]
import ignite, matplotlib
from monai.metrics import compute_hausdorff_distance
import torch
square = torch.zeros(1, 1, 8, 8)
square[..., 2:4, 2:4] = 1
far = compute_hausdorff_distance(square, square.roll(1, -1), include_background=True)
print(json.dumps([heavy, far.item()]))
"""


def loaded_by(folder, program: str, said: str | None = None) -> list:
    """The packages that a program has once it has our networks; it can import them all the same, and measure."""
    (folder / program).write_text(LOADED)
    env = {key: value for key, value in os.environ.items() if key != "FEDSM_WHOLE_MONAI"}
    env |= {"FEDSM_WHOLE_MONAI": said} if said else {}
    command = [sys.executable, str(folder / program)]
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.process
def test_a_process_of_ours_loads_no_optional_package(tmp_path):
    assert loaded_by(tmp_path, "fedsm") == [[], 1.0]


@pytest.mark.slow
def test_a_program_of_others_gets_the_whole(tmp_path):
    assert "ignite" in loaded_by(tmp_path, "theirs.py")[0]


def module(name: str | None) -> ModuleType:
    made = ModuleType("__main__")
    made.__spec__ = type("Spec", (), {"name": name}) if name else None
    return made


@pytest.mark.parametrize(
    ("name", "program", "whole"),
    [
        (None, "/venv/bin/fedsm", False),
        (None, "/venv/bin/nvflare", False),
        ("nvflare.private.fed.app.client.worker_process", "-m", False),
        ("fedsm.client.trainer_process", "-m", False),
        ("app_fedsm.job", "-m", False),
        (None, "job.py", True),
        ("nvflare_of_others.main", "-m", True),
        (None, "", True),
    ],
)
def test_whose_process_it_is(monkeypatch, name, program, whole):
    monkeypatch.delenv("FEDSM_WHOLE_MONAI")
    assert wants_whole(module(name), program) == whole
    monkeypatch.setenv("FEDSM_WHOLE_MONAI", "1")
    assert wants_whole(module(name), program)
