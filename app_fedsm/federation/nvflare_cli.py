"""Calls of the `nvflare` command."""

from __future__ import annotations

import os
import subprocess
import sys


def run_nvflare(*arguments: str, **environment: str) -> str | None:
    """Runs `nvflare ARGUMENTS`, which gets no answers from a terminal.

    Args:
        arguments: what follows `nvflare` on the command line.
        environment: variables that are added to this process's own, or replace them.

    Returns:
        None, or its message when it failed, in one line.
    """
    # Its errors hold a dash that is not ASCII, and a process's locale may be: libraries change it.
    done = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", *arguments], env=os.environ | environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )  # fmt: skip
    if done.returncode == 0:
        return None
    return " ".join(done.stdout.split())[-600:] or f"exit code {done.returncode}"
