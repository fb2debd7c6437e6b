"""In which numbers a site's networks are trained.

    float32    as they are
    bfloat16   matrices and convolutions in 8 bits of precision and float32's range (autocast)
    float16    in 11 bits and a small range: losses are scaled up, or small gradients become 0 (`GradScaler`)

Weights, their gradients, Adam's moments and losses are always float32. On CUDA, where nothing else is said, it is
bfloat16 on GPUs that compute in it, and float16 on older ones; on a CPU float32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

_BFLOAT16 = (8, 0)  # the compute capability from which on CUDA computes in bfloat16: Ampere

Precision = Literal["float32", "bfloat16", "float16"]


def autocast_dtype(device: torch.device, amp: bool, precision: Precision | None = None) -> torch.dtype | None:
    """What autocast computes in at a site; None: no autocast.

    Args:
        device: the site's device.
        amp: whether the job allows mixed precision.
        precision: what the site asks for; None: what suits the device.
    """
    if not amp:
        return None
    if precision is None and device.type == "cuda":
        precision = "bfloat16" if torch.cuda.get_device_capability(device) >= _BFLOAT16 else "float16"
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision or "float32")


def fused_adam(device: torch.device, autocast: torch.dtype | None) -> bool | None:
    """Whether Adam is one kernel; None: as torch likes.

    On CUDA it is faster. A `GradScaler` needs it as well: it alone leaves out a step without asking the device.
    """
    return True if device.type == "cuda" or autocast == torch.float16 else None


def image_format(net: nn.Module, device: torch.device) -> torch.memory_format:
    """How a batch lies in memory.

    Channels last is what CUDA's convolutions compute fastest in. Instance norm (the default U-Net's) would turn every
    batch back, so there it stays as it is. Weights are not turned: what is saved and sent is the same on all devices.
    """
    turns_back = any(isinstance(module, _InstanceNorm) for module in net.modules())
    return torch.channels_last if device.type == "cuda" and not turns_back else torch.contiguous_format
