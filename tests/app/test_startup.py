"""Commands answer at once: help, errors and a workspace need neither torch nor MONAI nor nvflare."""

import os
import subprocess
import sys

import pytest

from app_fedsm.config import build, names
from app_fedsm.runs import workspace
from fedsm import __version__
from fedsm.client import site_settings
from fedsm.core.settings import NORM_CHECKS
from tests.helpers.small_jobs import write_site

HEAVY = {"torch", "monai", "nvflare"}
PROBE = """
import sys
from app_fedsm.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as e:
    code = e.code
print("\\n" + " ".join(sorted({name.partition(".")[0] for name in sys.modules})))
sys.exit(code)
"""


def ask(*arguments: str) -> tuple[int, str, set[str]]:
    """Exit code, what was printed, and the top-level modules that were imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=300, env=os.environ
    )
    *told, modules = done.stdout.splitlines()
    return done.returncode, "\n".join(told) + done.stderr, set(modules.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, "usage: fedsm"),
        ([], 0, "usage: fedsm"),
        (["poc"], 0, "usage: fedsm poc"),
        (["run", "--help"], 0, "example:"),
        (["experiment", "--help"], 0, "nuclei_selectors"),
        (["--version"], 0, f"fedsm {__version__}"),
        (["run", "--ronds", "3"], 2, "did you mean --rounds?"),
        (["rum"], 2, "did you mean run?"),
        (["run", "--ronds", "3", "--format", "json"], 2, '{"schema_version": "1", "command": "fedsm run"'),
        (["workspace"], 2, "required"),
        (["completion", "bash"], 0, "complete"),
    ],
)
def test_help_and_errors_import_nothing_heavy(arguments, code, words):
    ended, told, modules = ask(*arguments)
    assert ended == code and words in told, told
    assert not modules & (HEAVY | {"numpy", "pydantic"}), modules & (HEAVY | {"numpy", "pydantic"})


def test_a_workspace_imports_nothing_heavy(tmp_path):
    for i, site in enumerate(("alpha", "beta")):
        write_site(tmp_path / "data" / site, 4, i)
    code, told, modules = ask("workspace", str(tmp_path / "ws"), "--data", str(tmp_path / "data"))
    assert code == 0 and "nvflare simulator JOB" in told
    assert not modules & HEAVY


def test_what_help_says_is_what_the_settings_are():
    """The lists for `--help` are written down a second time, to be had without torch."""
    assert list(names.SELECTORS) == build.SELECTORS and list(names.PERSONAL) == build.PERSONAL
    assert names.NORM_CHECKS == NORM_CHECKS
    settings = build.build_settings("retinal", names.DEFAULTS["method"])
    assert {name: getattr(settings, name) for name in names.DEFAULTS} == names.DEFAULTS
    assert workspace.SITE_FILE == site_settings.FILE_NAME
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    assert workspace._flare_classes() == DEFAULT_CLASS_ALLOW_LIST
