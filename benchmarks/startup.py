"""How soon `fedsm --help` answers: as a multiple of a Python that imports argparse and yaml."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.process import Failed
from benchmarks.report import Check, Outcome
from benchmarks.simulator import Simulator

_BAR = 8.0
_TIMES = 21
_HELP = [str(Path(sys.executable).with_name("fedsm")), "--help"]
_PYTHON = [sys.executable, "-c", "import argparse, yaml"]


def _seconds(command: list[str]) -> float:
    began = time.perf_counter()
    if code := subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        raise Failed(f"{' '.join(command)} ended with code {code}")
    return time.perf_counter() - began


def measure(simulator: Simulator) -> Outcome:
    """The median of several starts, in turns: what else the machine does, it does to both."""
    _seconds(_HELP), _seconds(_PYTHON)  # what is read from the disk once
    pairs = [(_seconds(_HELP), _seconds(_PYTHON)) for _ in range(_TIMES)]
    help_seconds, python_seconds = (statistics.median(times) for times in zip(*pairs, strict=True))
    figures = {"help_seconds": help_seconds, "python_seconds": python_seconds, "ratio": help_seconds / python_seconds}
    return Outcome([Check("`fedsm --help` over `import argparse, yaml`", figures["ratio"], _BAR)], figures)
