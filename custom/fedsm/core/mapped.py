"""Tensors that stay in a safetensors file: mapped into memory, read when they are used, given back when they are not.

Pages of a mapped file count as the process's memory from their first use on, until `release` gives them back to the
system, which reads them again when they are needed. Nothing is lost by that: what is mapped for reading must not be
changed, as nothing that a track hands out, and what is mapped for writing is in the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from fedsm.core.tensors import Tensors

_MAPPED = "fedsm_mapped"  # attribute of a tensor that is a view of a mapped file
_LENGTH = 8  # bytes before the header that say how long it is
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def map_tensors(path: Path, writable: bool = False) -> Tensors:
    """The tensors of a file, as views of its mapped content.

    Args:
        path: a safetensors file.
        writable: whether what is written to the tensors gets into the file. Otherwise they must not be written to.

    Raises:
        OSError: it cannot be read.
        SafetensorError: it is no safetensors file.
    """
    with safe_open(path, framework="pt"):
        pass  # it has checked the header: the offsets lie in the file, do not overlap and fit the shapes
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    start, size = _LENGTH + length, path.stat().st_size
    plain = all(
        entry["dtype"] in _TYPES and (start + entry["data_offsets"][0]) % _TYPES[entry["dtype"]].itemsize == 0
        for entry in header.values()
    )
    if not plain or not header or start == size:
        if writable:
            raise SafetensorError(f"{path} is not laid out for writing")
        tensors: Tensors = load_file(path)
        return tensors
    content = torch.from_file(str(path), shared=writable, size=size, dtype=torch.uint8)
    tensors = {}
    for key, entry in header.items():
        first, end = (start + offset for offset in entry["data_offsets"])
        value = content[first:end].view(_TYPES[entry["dtype"]]).view(entry["shape"])
        setattr(value, _MAPPED, True)
        tensors[sys.intern(key)] = value
    return tensors


def is_mapped(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether these are tensors that `release` gives back."""
    return bool(tensors) and all(getattr(value, _MAPPED, False) for value in tensors.values())


def release(tensors: Mapping[str, torch.Tensor]) -> None:
    """Gives the pages of mapped tensors back to the system. Other tensors stay as they are."""
    for value in tensors.values():
        release_tensor(value)


def release_tensor(value: torch.Tensor) -> None:
    """The same for one tensor, and for what shares its first and its last page."""
    if getattr(value, _MAPPED, False) and value.nbytes:
        first = value.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        _advise(first, value.data_ptr() + value.nbytes - first)


def _advise(address: int, size: int) -> None:
    if (madvise := _madvise()) is not None:
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


@cache
def _madvise() -> Any:
    """The system's call; None where there is none like Linux's: pages are given back when the tensors are gone."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.CDLL(None, use_errno=True).madvise
    return None
