"""Workaround: `app_fedsm.federation.nvflare_cli` reads what the `nvflare` command says as UTF-8, whatever the locale.

Symptom: the command's errors hold a dash that is not ASCII, and reading them fails in the locale `C`, which ITK's DICOM
writer leaves behind in a process. FLARE 2.9.0. With the workaround: `tests/app/test_nvflare_cli.py`.
"""

import os
import subprocess
import sys


def test_what_the_command_says_is_not_ascii(tmp_path):
    environment = os.environ | {"HOME": str(tmp_path), "NVFLARE_POC_WORKSPACE": str(tmp_path / "none")}
    command = [sys.executable, "-m", "nvflare.cli", "poc", "stop"]
    said = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert said.returncode and not (said.stdout + said.stderr).isascii()
