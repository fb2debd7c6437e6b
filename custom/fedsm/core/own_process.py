"""Whose process this is: ours, or that of a program that uses us as a library."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

PROGRAMS = {"app_fedsm", "fedsm"}  # commands and packages whose processes are ours; the room `flare` adds its own


def is_ours(main: ModuleType, program: str) -> bool:
    """Whether a process is ours; `main` is its `__main__`, `program` its first argument."""
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec else Path(program).name
    return name.split(".")[0] in PROGRAMS
