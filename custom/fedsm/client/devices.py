"""Which devices a site computes on: what `device` and `devices` of its `fedsm_site.yaml` come to."""

from __future__ import annotations

from pathlib import Path

import torch

from fedsm.client.gpu_failures import why_no_cuda
from fedsm.core.errors import UserError


def site_devices(
    device: str | None, devices: int | list[int] | None, path: Path, site: str
) -> tuple[torch.device, ...]:  # fmt: skip
    """The site's devices, the first of which does everything but a round's training alone.

    Args:
        device: the file's `device`.
        devices: the file's `devices`: how many, or the numbers of the GPUs; None: one.
        path: the file, for errors.
        site: its site, for errors.

    Raises:
        UserError: a device that is none, or not there, or both settings contradict each other.
    """
    if devices is None:
        return (_device(device, path, site),)
    if device not in (None, "cpu", "cuda"):
        raise UserError(
            f"device {device!r} and `devices` are both set", site=site, file=path,
            remedy="write `devices` alone: a number, or a list of the GPUs' numbers",
        )  # fmt: skip
    if device == "cpu":
        if isinstance(devices, list):
            raise UserError(
                "`devices` lists GPUs, and `device` is cpu", site=site, file=path,
                remedy="leave `device` out, or write how many processes train: `devices: 2`",
            )  # fmt: skip
        return (torch.device("cpu"),) * devices
    numbers = devices if isinstance(devices, list) else range(devices)
    if len(set(numbers)) < len(numbers):
        raise UserError("`devices` names a GPU twice", site=site, file=path, remedy="name each GPU once")
    if not torch.cuda.is_available():
        raise UserError(
            f"devices {devices} asked for, but this machine has no usable CUDA GPU ({why_no_cuda()})",
            site=site, file=path, remedy="leave `devices` out, or write `device: cpu` beside a number",
        )  # fmt: skip
    if max(numbers) >= (count := torch.cuda.device_count()):
        raise UserError(
            f"devices {devices} asked for, but this machine has {count} GPUs", site=site, file=path,
            remedy=f"the highest number of a GPU here is {count - 1}; see CUDA_VISIBLE_DEVICES",
        )  # fmt: skip
    return tuple(torch.device("cuda", number) for number in numbers)


def _device(name: str | None, path: Path, site: str) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise UserError(f"device {name!r} is none", site=site, file=path, remedy="use cpu, cuda or cuda:N") from e
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"device {name!r} asked for, but this machine has no usable CUDA GPU ({why_no_cuda()})",
            site=site, file=path, remedy="use cpu, or leave `device` out",
        )  # fmt: skip
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UserError(
            f"device {name!r} asked for, but this machine has {count} GPUs", site=site, file=path,
            remedy=f"use cuda:0 to cuda:{count - 1}",
        )  # fmt: skip
    return device
