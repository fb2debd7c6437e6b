"""A site's pass over its training images: every batch steps every track, and nobody waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import tee
from typing import NamedTuple

import torch

from fedsm.client.track_streams import ONE_STREAM, Streams
from fedsm.core.settings import JobSettings
from fedsm.core.tensors import Tensors
from fedsm.data.augment import draw_transforms, transformed
from fedsm.data.dataset import Part, seeded_order
from fedsm.data.staging import Load, Staged, staged
from fedsm.tracks.base import ClientTrack


class Step(NamedTuple):
    """A batch before it is read.

    Attributes:
        rows: the rows of its images.
        transforms: how they are augmented; see `draw_transforms`.
        empty: whether nobody was drawn, and its one image does not count (`dp`, `devices`).
        share: this process's part of the batch's images (`devices`).
    """

    rows: torch.Tensor
    transforms: tuple[torch.Tensor, ...]
    empty: bool = False
    share: float = 1.0


def steps_of(settings: JobSettings, part: Part, site: str, number: int) -> Iterator[Step]:
    """The batches of round `number`: the same in every process."""
    for epoch in range(settings.local_epochs):
        order = seeded_order(settings, site, number, epoch)
        rng = torch.Generator().manual_seed(order)
        for rows in part.order(settings.batch_size, order):
            yield Step(rows, draw_transforms(len(rows), settings.task.augment, rng))


def train_on(
    steps: Iterable[Step],
    part: Part,
    tracks: Mapping[str, ClientTrack],
    device: torch.device,
    pin: bool,
    before: Callable[[Step], None],
    streams: Streams = ONE_STREAM,
) -> Tensors:
    """Steps every track on every batch.

    Args:
        steps: the batches; asked for some steps before they are used.
        part: the training images.
        tracks: by name, in the order in which they step.
        device: where they are trained.
        pin: whether batches go through pinned memory (CUDA).
        before: called before each step.
        streams: on which each track steps.

    Returns:
        the sum of the losses over images, by track: float64, on the device.
    """
    totals: Tensors = {}
    here, ahead = tee(steps)
    for step, tensors in zip(here, staged((_load(part, s) for s in ahead), device, pin), strict=True):
        before(step)
        rows, images, labels, *transforms = tensors
        images, labels = transformed(images, labels.float(), tuple(transforms))
        count = 0 if step.empty else len(images)
        for name, track in tracks.items():
            with streams.of(name, (images, labels, rows)):
                loss = track.step(images, labels, rows)
                if loss is not None:
                    total = loss.detach().double() * count
                    totals[name] = totals[name] + total if name in totals else total
    streams.join(totals.values())
    return totals


def _load(part: Part, step: Step) -> Load:
    def load() -> Staged:
        return step.rows, *part.load(step.rows), *step.transforms

    return load
