"""Sums over a site's device processes: gloo on the CPU, NCCL between GPUs, on this machine alone.

The processes find each other by a file in a folder of the site's own, and talk over loopback. No process group of
torch's own is set up (`init_process_group`): there is one for each process, and code of others may want it.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedsm.core.errors import UserError

_LOOPBACK = "127.0.0.1"


class GroupBroken(Exception):
    """Another process of the group is gone, or too late."""


def check_distributed(device: torch.device) -> None:
    """Refuses several devices where this torch cannot connect them.

    Raises:
        UserError: with the remedy.
    """
    there = dist.is_available() and (dist.is_nccl_available() if device.type == "cuda" else dist.is_gloo_available())
    if not there:
        library = "NCCL" if device.type == "cuda" else "gloo"
        raise UserError(
            f"several devices asked for, but this torch has no {library} to connect them",
            remedy="leave `devices` out of fedsm_site.yaml, or install a build of torch with it",
        )


class DeviceGroup:
    """The sums. Made by all processes at the same time: each waits here for the others.

    Args:
        meeting: a file that is not there yet, the same for all.
        rank: of this process, 0 is the trainer.
        count: of all processes.
        device: of this process.
        seconds: how long one waits for another.

    Raises:
        GroupBroken: another did not come.
    """

    def __init__(self, meeting: Path, rank: int, count: int, device: torch.device, seconds: float):
        wait = timedelta(seconds=seconds)
        self._cuda = device.type == "cuda"
        self._group: Any
        try:
            store = dist.FileStore(str(meeting), count)  # type: ignore[attr-defined]
            store.set_timeout(wait)
            if self._cuda:
                os.environ["NCCL_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = wait
                self._group = dist.ProcessGroupNCCL(store, rank, count, options)
            else:
                gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
                gloo._timeout = wait
                self._group = dist.ProcessGroupGloo(store, rank, count, gloo)
        except RuntimeError as e:
            raise GroupBroken(str(e)) from e

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by its sum over all processes. On a GPU the stream waits for it, and not the host.

        Raises:
            GroupBroken: a process is gone.
        """
        try:
            self._group.allreduce([tensor]).wait()
        except RuntimeError as e:
            raise GroupBroken(str(e)) from e

    def abort(self) -> None:
        """Ends sums that wait for a process that is gone. gloo finds out by itself."""
        if self._cuda:
            self._group.abort()
