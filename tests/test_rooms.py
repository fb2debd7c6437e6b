"""Dependencies point one way: what a person runs in a notebook never imports FLARE."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedsm

PACKAGE = Path(fedsm.__file__).parent
ROOMS = ("tracks", "nets", "data", "super_model", "evaluation")


@pytest.mark.parametrize("room", ROOMS)
def test_room_does_not_import_nvflare(room):
    for path in (PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] in ("nvflare", "app_fedsm") for n in names), path
            assert not any(n.startswith(("fedsm.client", "fedsm.server", "fedsm.flare.exchange")) for n in names), path


def test_preflight_runs_without_flare():
    """It uses the site's settings of `client`, but a kit is looked at, not started."""
    code = "import sys, fedsm.preflight.site; sys.exit('nvflare' in sys.modules or 'app_fedsm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_loading_a_super_model_does_not_load_nvflare():
    code = "import sys, fedsm.super_model.artefact, fedsm.evaluation.candidates; sys.exit('nvflare' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
