"""The trainer's end of a site's device processes: it starts them, hands them rounds, and sees when one is gone.

The trainer is the first of them and does everything else by itself. The others live from round to round. Whatever goes
wrong in a round ends all of them; and if one of them was the cause, the trainer says so and ends, too, because a GPU
that waits for another cannot be trusted afterwards. The next task starts everything again from the state on disk.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedsm.client import frames
from fedsm.client.batch_parts import part_of
from fedsm.client.device_group import DeviceGroup, GroupBroken
from fedsm.client.device_plan import DevicePlan, add_up_losses, weight_sums
from fedsm.client.gpu_failures import GpuFailure
from fedsm.client.training_pass import Step
from fedsm.core.tensors import Tensors
from fedsm.tracks.base import ClientTrack
from fedsm.tracks.shared_gradients import SharedGradients, share_gradients

COMMAND = (sys.executable, "-P", "-m", "fedsm.client.device_process")
_FOLDER = "devices"
_LAST_WORDS = 10  # seconds in which a process that broke a round says why
_SAME = 1e-4  # how far sums of weights may be apart: rounding is far below, an own way far above

log = logging.getLogger(__name__)

Walk = Callable[[Iterable[Step], Callable[[Step], None]], Tensors]


class DeviceLink:
    """The other processes of a site.

    Args:
        plan: what all are told; `rank`, `device` and `meeting` are filled in here.
        devices: of all processes, the trainer's first.
        tracks: the trainer's own; from now on their gradients are added up over the devices.
        command: what to start; a file descriptor is added to it.
    """

    def __init__(
        self, plan: DevicePlan, devices: tuple[torch.device, ...], tracks: Mapping[str, ClientTrack],
        command: tuple[str, ...] = COMMAND,
    ):  # fmt: skip
        self._plan, self._devices, self._command = plan, devices, command
        self._gradients = SharedGradients(self._add_up)
        share_gradients(tracks, self._gradients)
        self._others: list[_Other] = []
        self._group: DeviceGroup | None = None

    @property
    def pids(self) -> list[int]:
        """The other processes."""
        return [other.process.pid for other in self._others]

    def start(self) -> None:
        """Starts what does not run yet; does not wait for it."""
        if self._others:
            return
        folder = Path(self._plan.state_dir) / _FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._plan = replace(self._plan, meeting=str(folder / uuid.uuid4().hex))
        for rank, device in enumerate(self._devices[1:], 1):
            self._others.append(_Other(self._command, replace(self._plan, rank=rank, device=str(device))))

    def train(
        self, header: dict[str, Any], payload: dict[str, Tensors], tracks: Mapping[str, ClientTrack],
        steps: Iterable[Step], before: Callable[[Step], None], walk: Walk,
    ) -> Tensors:  # fmt: skip
        """A round's pass, each batch split over the devices.

        Args:
            header: the arguments of `DeviceTrainer.train` beside the models.
            payload: the server's models.
            tracks: those that take part.
            steps: whole batches.
            before: called before each step.
            walk: passes over batches that are asked for, as `train_on` does, and gives the sums of the losses.

        Raises:
            GpuFailure: a process failed, or is gone.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self._plan.threads)
        try:
            self.start()
            self._connect()
            for other in self._others:
                frames.send(other.sock, header, {name: dict(tensors) for name, tensors in payload.items()})
            mine = (part_of(step, 0, self._plan.count) for step in steps)
            totals = add_up_losses(walk(mine, lambda step: self._before_step(step, before)), self._add_up)
            self._check(weight_sums(tracks))
        except Exception as e:
            failure = self._why(e)
            self.end()
            if failure is None:
                raise
            raise failure from e
        finally:
            torch.set_num_threads(threads)
        return totals

    def _connect(self) -> None:
        if self._group is None:
            for other in self._others:
                other.answer()  # that it is ready
            plan = self._plan
            self._group = DeviceGroup(Path(plan.meeting), 0, plan.count, self._devices[0], plan.seconds)
            for other in self._others:
                other.watch(self._group)

    def _before_step(self, step: Step, before: Callable[[Step], None]) -> None:
        before(step)
        self._gradients.share = step.share

    def _add_up(self, tensor: torch.Tensor) -> None:
        assert self._group
        self._group.add_up(tensor)

    def _check(self, sums: dict[str, float]) -> None:
        """Whether all processes came to the same weights. A diverged round is refused by its own words."""
        for other in self._others:
            theirs = other.answer()["sums"]
            for name, own in sums.items():
                if math.isfinite(own) and not math.isclose(own, theirs[name], rel_tol=_SAME):
                    message = f"the devices of the site came to different weights ({name})"
                    raise GpuFailure(message, site=self._plan.name, public=message)

    def _why(self, error: Exception) -> GpuFailure | None:
        """Which process broke a round, and why; None: none did."""
        broken = isinstance(error, (GroupBroken, EOFError, BrokenPipeError, ConnectionResetError))
        failures = [found for other in self._others if (found := other.failure(_LAST_WORDS if broken else 0))]
        if not failures and not broken:
            return None
        found = min(failures, key=lambda one: not one.cause, default=_Failure("a device process lost its connection"))
        public = f"{found.public or found.what}; the next task starts it again"
        return GpuFailure(found.what, site=self._plan.name, remedy=found.remedy, public=public)

    def end(self) -> None:
        """Ends the other processes, also while they work."""
        for other in self._others:
            other.end()
        self._others, self._group = [], None


class _Failure(NamedTuple):
    """How a process ended: in words for the site, for the server, what to do, and whether it was the first."""

    what: str
    public: str = ""
    remedy: str | None = None
    cause: bool = True


class _Other:
    """One process, from its start to its end."""

    def __init__(self, command: tuple[str, ...], plan: DevicePlan):
        self._name = f"device process {plan.rank + 1} of {plan.count} ({plan.device})"
        self._ending = False
        self._said: dict[str, Any] = {}
        self.sock, theirs = socket.socketpair()
        paths = os.pathsep.join(p for p in sys.path if p)  # code that came with a job is found only there
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(plan.threads)}
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.PIPE
            )
        frames.send(self.sock, asdict(plan), {})

    def answer(self) -> dict[str, Any]:
        """What it says after a round.

        Raises:
            EOFError: it is gone, or has failed.
        """
        self._said = frames.receive(self.sock)[0]
        if "failure" in self._said:
            raise EOFError
        return self._said

    def watch(self, group: DeviceGroup) -> None:
        """Ends the group's sums when the process is gone."""

        def wait() -> None:
            self.process.wait()
            if not self._ending:
                group.abort()

        threading.Thread(target=wait, daemon=True).start()

    def failure(self, seconds: float) -> _Failure | None:
        """Why it is gone, or about to be; None: it works.

        Args:
            seconds: how long to wait for its last words.
        """
        with contextlib.suppress(EOFError, OSError):
            while "failure" not in self._said and select.select([self.sock], [], [], seconds)[0]:
                self._said = frames.receive(self.sock)[0]
        if "failure" in self._said:
            return _Failure(f"{self._name}: {self._said['failure']}", self._said["public"], self._said["remedy"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(min(seconds, 1))
            ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            ended += ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
            return _Failure(f"{self._name} {ended}", cause=code != 1)  # 1: another process was gone before it
        return None

    def end(self) -> None:
        """Kills it: it holds nothing that is not on the trainer's disk."""
        self._ending = True
        self.process.kill()
        self.process.wait()
        assert self.process.stdin
        self.process.stdin.close()
        self.sock.close()
