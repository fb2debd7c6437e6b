"""What `compile: true` of a site needs: a compiler that works, and a folder of the site's own for what it makes.

torch keeps compiled code in a folder below the machine's temporary one, where anybody could be first to make it, and
loads it from there. Here it is below the site's `state_dir`, where it also survives a restart.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import torch

from fedsm.core.errors import UserError
from fedsm.core.text import one_line

_FOLDER, _VARIABLE = "compiled", "TORCHINDUCTOR_CACHE_DIR"
_REMEDY = "install g++ and Python's header files (python3-dev), or leave `compile` out of fedsm_site.yaml"


def check_compiler_there(device: torch.device, path: Path, site: str) -> None:
    """Refuses `compile: true` where nothing could compile; costs no time.

    Raises:
        UserError: naming what is missing.
    """
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"compile: true, but this machine has no C++ compiler ({compiler})", site=site, file=path, remedy=_REMEDY
        )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise UserError(
            "compile: true, but this Python has no triton, which makes code for GPUs", site=site, file=path,
            remedy="install torch's own build of it, or leave `compile` out",
        )  # fmt: skip


def prepare_compiler(device: torch.device, state_dir: Path, site: str) -> None:
    """Tries the compiler on one line, before anything costs time.

    Args:
        device: where networks are trained.
        state_dir: the site's; compiled code is kept below it.
        site: for errors.

    Raises:
        UserError: it does not work here, with its last word.
    """
    os.environ[_VARIABLE] = str(state_dir.absolute() / _FOLDER)  # before it is loaded: then torch sets its own
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # no processes beside the trainer's
    inductor.cpp_cache_precompile_headers = False  # they would be kept in the machine's temporary folder in any case
    try:
        torch.compile(_one_line, fullgraph=True)(torch.ones(8, device=device))
    except Exception as e:  # the compiler's words come through several kinds of exceptions
        message = "compile: true, but the compiler of this machine does not work"
        raise UserError(f"{message} ({one_line(e)})", site=site, remedy=_REMEDY, public=message) from e


def _one_line(values: torch.Tensor) -> torch.Tensor:
    return values.sin() + 1
