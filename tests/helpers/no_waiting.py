"""Modes under which whatever makes the host wait for the device fails, on a CPU as well.

Two are needed. On a CPU `.cpu()` and `.tolist()` do nothing that a dispatch mode could see, so their names are caught;
`.item()`, `bool(tensor)` and sizes that depend on values are caught where they are computed, whoever asks for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_READS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.equal}
_NAMES = {"cpu", "tolist", "numpy", "item", "__bool__", "__float__", "__int__", "__index__", "__array__"}
_ON_THE_HOST = "monai/losses/dice.py"  # lists the numbers of axes from a tensor that is on the CPU in any case


class Waits(AssertionError):
    """Something would wait for the device."""


class _Reads(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in _READS:
            raise Waits(f"{func} reads a value of the device")
        places = args[1] if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) else ()
        if any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in places):
            raise Waits(f"{func} with a mask: its size is a value of the device")
        return func(*args, **kwargs or {})


class _Names(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _NAMES and not (name == "tolist" and sys._getframe(1).f_code.co_filename.endswith(_ON_THE_HOST)):
            raise Waits(f"Tensor.{name} copies from the device")
        places = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, (str, torch.device))]
        if name == "to" and places and not kwargs.get("non_blocking"):
            raise Waits("Tensor.to another device waits for the copy")
        return func(*args, **kwargs)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Within it, in this thread, what waits for the device raises `Waits`."""
    with _Names(), _Reads():
        yield
