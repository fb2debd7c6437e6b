"""One device's part of a site's training: `python -P -m fedsm.client.device_process FD`, started by `device_link`.

It is given a round as a trainer would be that was restarted: the site's state from disk, the server's models from the
trainer, over the socket FD. It takes its part of every batch, ends with the same weights as the trainer, and sends
nothing but a sum of each network's weights, by which the trainer sees that it did. It ends with its parent: when
standard input closes. What it prints becomes lines of the site's log.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

from fedsm.client import frames
from fedsm.client.batch_parts import part_of
from fedsm.client.compiler import prepare_compiler
from fedsm.client.device_group import DeviceGroup, GroupBroken
from fedsm.client.device_plan import DevicePlan, add_up_losses, files_of, weight_sums
from fedsm.client.failures import explain
from fedsm.client.gpu_failures import gpu_failure
from fedsm.client.local_state import LocalState
from fedsm.client.track_streams import streams_of
from fedsm.client.training_pass import Step, steps_of, train_on
from fedsm.core.errors import UserError
from fedsm.core.private_files import keep_private
from fedsm.core.tensors import Tensors
from fedsm.data.dataset import load_site, seeded_order
from fedsm.nets.first_weights import seed_generator
from fedsm.tracks import client_tracks, rate_factor_in
from fedsm.tracks.base import TRAIN, SiteContext
from fedsm.tracks.shared_gradients import SharedGradients, share_gradients


class DeviceTrainer:
    """What a process other than the trainer holds: the training images and the client halves of all tracks.

    Raises:
        UserError: the site's folder has changed since the trainer read it.
    """

    def __init__(self, plan: DevicePlan):
        self.plan = plan
        self.device = torch.device(plan.device)
        self.settings = plan.job()
        torch.set_num_threads(plan.threads)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if plan.compile:
            prepare_compiler(self.device, Path(plan.state_dir), plan.name)
        data = load_site(*plan.place(self.settings))
        self._part = data["train"]
        if files_of(self._part) != plan.files:
            what = "the site's images have changed while a job was running"
            raise UserError(what, site=plan.name, remedy="the next task reads them again", public=what)
        self._context = SiteContext(
            plan.index, len(plan.sites), self.device, autocast=plan.dtype(), compiled=plan.compile
        )
        self.tracks = client_tracks(self.settings, self._context)
        self._streams = streams_of(plan.streams, self.tracks, self.device, plan.name)
        self._state = LocalState(Path(plan.state_dir), plan.run_id)
        self._gradients = SharedGradients(self._add_up)
        share_gradients(self.tracks, self._gradients)
        self._group: DeviceGroup | None = None

    def connect(self) -> None:
        """Joins the group: waits for the other processes."""
        plan = self.plan
        self._group = DeviceGroup(Path(plan.meeting), plan.rank, plan.count, self.device, plan.seconds)

    def _add_up(self, tensor: torch.Tensor) -> None:
        assert self._group
        self._group.add_up(tensor)

    def train(
        self, number: int, state_of: int, names: list[str] | None, payload: dict[str, Tensors]
    ) -> dict[str, float]:
        """This device's part of round `number`.

        Args:
            number: the round.
            state_of: the round whose state the trainer has.
            names: the tracks that take part; None: all.
            payload: the server's models.

        Returns:
            the sum of each trained network's weights.
        """
        plan = self.plan
        found, state = self._state.load(number)
        if found != state_of:
            what = "the site's local state is gone or has changed while a job was running"
            raise UserError(what, site=plan.name, remedy="the next task reads it again", public=what)
        for name, track in self.tracks.items():
            track.load_state(state.get(name, {}))
        self._context.rate_factor = rate_factor_in(self.settings, number)
        tracks = {name: track for name, track in self.tracks.items() if names is None or name in names}
        for name, track in tracks.items():
            track.receive(TRAIN, payload.pop(name, {}))
        batches = (self.settings.batch_size, self.device, self.settings.pin_memory)
        for track in tracks.values():
            track.begin(self.settings.local_epochs * len(self._part), self._part.batches(*batches))
        seed_generator(seeded_order(self.settings, plan.name, number, -1 - plan.rank))  # other images, other dropout
        steps = (part_of(s, plan.rank, plan.count) for s in steps_of(self.settings, self._part, plan.name, number))
        totals = train_on(
            steps, self._part, tracks, self.device, self.settings.pin_memory, self._before_step, self._streams
        )
        add_up_losses(totals, self._add_up)
        return weight_sums(tracks)

    def _before_step(self, step: Step) -> None:
        self._gradients.share = step.share


def main() -> None:
    """Trains its part of each round until the trainer is gone, or until a failure."""
    try:
        code = _serve()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def _serve() -> int:
    keep_private()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        plan = DevicePlan(**frames.receive(sock)[0])
        try:
            trainer = DeviceTrainer(plan)
            frames.send(sock, {"ready": True}, {})
            trainer.connect()
            while True:
                try:
                    header, payload = frames.receive(sock)
                except EOFError:
                    return 0
                frames.send(sock, {"sums": trainer.train(payload=payload, **header)}, {})
        except GroupBroken:
            return 1  # whoever broke it says why
        except Exception as e:
            frames.send(sock, _failure(e, plan), {})
            return 1


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


def _failure(error: Exception, plan: DevicePlan) -> dict[str, Any]:
    job = plan.job()
    found = gpu_failure(error, torch.device(plan.device), job.batch_size, job.size) or explain(error)
    return {"failure": found.what, "remedy": found.remedy, "public": found.public}


if __name__ == "__main__":
    main()
