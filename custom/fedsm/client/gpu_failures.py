"""What CUDA says when it cannot go on, in one line each: what is wrong, and what to do."""

from __future__ import annotations

import re

import torch

from fedsm.core.errors import UserError

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?[KMGT]?i?B)")
_DRIVER = "update the NVIDIA driver, or install a build of torch for this driver; until then `device: cpu`"
_ENDED = "the trainer's process starts again with the next task"
# What CUDA or torch says, in lower case; what that means; what to do.
_WORDS = (
    ("found no nvidia driver", "this machine has no NVIDIA driver", "install it, or write `device: cpu`"),
    ("driver on your system is too old", "the NVIDIA driver is older than this torch needs", _DRIVER),
    ("driver version is insufficient", "the NVIDIA driver is older than this torch needs", _DRIVER),
    ("forward compatibility was attempted", "the NVIDIA driver does not fit this GPU and this torch", _DRIVER),
    ("driver/library version mismatch", "the NVIDIA driver was updated while it was loaded", "restart the machine"),
    ("not compiled with cuda", "this torch is a build without CUDA", "install a build with it, or `device: cpu`"),
    (
        "invalid device ordinal",
        "the GPU that `device` names is not there",
        "see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, and correct `device` in fedsm_site.yaml",
    ),
    (
        "busy or unavailable",
        "another job holds the GPU for itself",
        "see `nvidia-smi`; wait for that job, name another `device`, or have `nvidia-smi -c 0` allow several",
    ),
    (
        "no cuda gpus are available",
        "no GPU is visible to this process",
        "see `nvidia-smi` and CUDA_VISIBLE_DEVICES, or write `device: cpu`",
    ),
    (
        "no kernel image is available",
        "this torch has no code for this GPU, which is too old or too new for it",
        "install a build of torch for it, or write `device: cpu`",
    ),
    ("illegal memory access", "the GPU failed in a computation", f"{_ENDED}; if it comes again, see `dmesg`"),
    ("uncorrectable ecc error", "the GPU's memory is faulty", "see `nvidia-smi -q -d ECC`; use another `device`"),
    ("device-side assert", "a computation on the GPU was invalid", f"{_ENDED}; `device: cpu` says where it is"),
    ("unspecified launch failure", "the GPU failed in a computation", f"{_ENDED}; if it comes again, see `dmesg`"),
)


class GpuFailure(UserError):
    """The GPU is in a state in which a process should not go on."""


def gpu_failure(error: Exception, device: torch.device, batch_size: int, size: int) -> GpuFailure | None:
    """A failure of the GPU in words; None: it is something else.

    Args:
        error: what was raised.
        device: the site's device.
        batch_size: the job's.
        size: the job's.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return _out_of_memory(error, device, batch_size, size)
    if not isinstance(error, (RuntimeError, AssertionError)):
        return None
    text = " ".join(str(error).split())
    found = next(((what, remedy) for words, what, remedy in _WORDS if words in text.lower()), None)
    if found is None and "CUDA error" not in text:
        return None
    what, remedy = found or ("the GPU failed", f"{_ENDED}; `nvidia-smi` says what state it is in")
    return GpuFailure(f"{what} ({device}: {text[:200]})", remedy=remedy, public=f"{what} at the site: {remedy}")


def smaller(batch_size: int, size: int) -> str:
    """Which setting to halve, in words."""
    if batch_size > 1:
        return f"halve batch_size (to {batch_size // 2})"
    return f"batch_size is 1: halve size (to {size // 2})"


def _out_of_memory(error: Exception, device: torch.device, batch_size: int, size: int) -> GpuFailure:
    asked = _ASKED.search(str(error))
    what = f"out of memory on {device}: {asked[1] if asked else 'more'} asked for"
    try:
        free, total = torch.cuda.mem_get_info(device)
        what += f", {free / 2**30:.2f} GiB of {total / 2**30:.2f} GiB free"
    except (RuntimeError, AssertionError, ValueError):
        what += ", how much is free it does not say"
    remedy = f"{smaller(batch_size, size)}, or end other programs that use the GPU (nvidia-smi)"
    return GpuFailure(what, remedy=remedy, public=f"out of GPU memory at the site: {smaller(batch_size, size)}")


def why_no_cuda() -> str:
    """Why torch finds no GPU that it can use, in words."""
    try:
        torch.cuda.init()
        torch.cuda.get_device_properties(0)
    except (RuntimeError, AssertionError) as e:
        found = gpu_failure(e, torch.device("cuda"), 1, 1)
        return f"{found.message.partition(' (')[0]}; {found.remedy}" if found else " ".join(str(e).split())[:200]
    return "torch says of no GPU that it could be used"
