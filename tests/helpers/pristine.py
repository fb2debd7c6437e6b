"""A module of a library as it was before anybody changed it in this process."""

from __future__ import annotations

import importlib.util
from types import ModuleType


def pristine(module: ModuleType) -> ModuleType:
    """Loads the module's file again, under another name: what was replaced in the first one is as delivered here."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_as_delivered", module.__file__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh
