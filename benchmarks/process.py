"""Everything that is timed runs in a process of its own, so that no measurement leaves its mark on the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]  # where `benchmarks` is found
_STOP_SECONDS = 30


class Failed(Exception):
    """A process that was to be measured did not reach its end."""


def run_module(module: str, *arguments: str | int | Path, home: Path | None = None) -> str:
    """`python -m module arguments`; its progress goes to our stderr.

    Args:
        module: the module's name.
        *arguments: its command line.
        home: home folder of the process, where FLARE leaves files behind.

    Returns:
        what it wrote to stdout.

    Raises:
        Failed: it ended with another code than 0.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ({"HOME": str(home)} if home else {})
    process = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt:
        process.wait(_STOP_SECONDS)  # it got the same Ctrl-C: killed now, it would leave its simulator behind
        raise
    if process.returncode:
        raise Failed(f"{' '.join([module, *map(str, arguments[:1])])} ended with code {process.returncode}")
    return output


def measure_module(module: str, *arguments: str | int | Path) -> dict:
    """The same for a module of ours that prints its figures as JSON."""
    return json.loads(run_module(module, *arguments))


def say(text: str) -> None:
    """Tells the person who waits what is going on."""
    print(text, file=sys.stderr, flush=True)
