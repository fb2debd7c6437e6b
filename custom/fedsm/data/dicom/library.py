"""pydicom and highdicom, imported when a DICOM file is met; silent, because their messages quote values of patients."""

from __future__ import annotations

import functools
import importlib
import logging
import warnings
from types import ModuleType

from fedsm.core.errors import UserError

_REMEDY = "pip install 'fedsm[dicom]'"


def pydicom() -> ModuleType:
    """The package that reads DICOM.

    Raises:
        UserError: not installed.
    """
    return _quiet("pydicom")


def highdicom() -> ModuleType:
    """The package that writes DICOM-SEG and secondary captures.

    Raises:
        UserError: not installed.
    """
    pydicom()
    return _quiet("highdicom")


@functools.cache
def _quiet(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ImportError as e:
        raise UserError(f"DICOM files need the package {name}", remedy=_REMEDY) from e
    if name == "pydicom":
        config = importlib.import_module("pydicom.config")
        config.settings.reading_validation_mode = config.IGNORE  # what we use is checked in `header.py`
        config.settings.writing_validation_mode = config.IGNORE  # what others wrote is copied as it is
    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for module_name in ("pydicom", "highdicom", "pylibjpeg", "openjpeg"):
        warnings.filterwarnings("ignore", module=module_name)
    return module
