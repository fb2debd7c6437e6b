"""The parts of MONAI that we use, loaded in a quarter of the time.

`import monai` loads every optional package that it finds: mlflow, ignite, pandas and more, none of which networks and
losses need. That is most of a process's start, and a federation starts many. In a process of ours
(`fedsm.core.own_process`) these packages are not found while MONAI is loaded; afterwards they are, by everybody. A
program that uses us as a library gets the whole of MONAI. FEDSM_WHOLE_MONAI=1 and =0 say it for any process: the code
of others in a job may need the whole, as MONAI's engines and handlers want ignite.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType

from fedsm.core.own_process import is_ours

_OPTIONAL = frozenset(
    (
        "ignite",
        "matplotlib",
        "mlflow",
        "nibabel",
        "onnx",
        "pandas",
        "pydicom",
        "scipy.signal",
        "skimage",
        "sklearn",
        "tensorboard",
    )
)


class _NotFound(MetaPathFinder):
    """Says of some packages that they are not there, to the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in _OPTIONAL and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is not loaded for MONAI", name=fullname)


def wants_whole(main: ModuleType, program: str) -> bool:
    """Whether a process gets the whole of MONAI; `main` is its `__main__`, `program` its first argument."""
    if (said := os.environ.get("FEDSM_WHOLE_MONAI")) in ("0", "1"):
        return said == "1"
    return not is_ours(main, program)


@contextmanager
def without_optional_packages() -> Iterator[None]:
    """While MONAI is loaded."""
    finder = _NotFound()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _load() -> None:
    if "monai" in sys.modules or wants_whole(sys.modules["__main__"], sys.argv[0]):
        return
    with without_optional_packages():
        import monai  # noqa: F401


_load()

from monai.losses import DiceLoss  # noqa: E402
from monai.networks import nets as networks  # noqa: E402
from monai.networks.nets import UNet  # noqa: E402

__all__ = ["DiceLoss", "UNet", "networks"]
