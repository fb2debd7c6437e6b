"""The networks of a batch beside each other on a GPU: each track steps on a CUDA stream of its own.

A small network leaves most of a GPU idle, and two of them need not wait for each other: they share a batch and nothing
else. Nor does the host wait. What makes it right:

    before a step   its stream waits for the stream that made the batch, and with it for the weights that came
    the batch       is marked as used by the stream, so that its memory is not given away before
    at the end      the stream that goes on (validation, sending) waits for all of them, and losses are marked as its

Everything else that a step makes (activations, gradients, moments) is made and used on its track's stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from fedsm.tracks.base import ClientTrack

log = logging.getLogger(__name__)


class Streams(Protocol):
    """On which streams tracks step."""

    def of(self, track: str, batch: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
        """Within it, what a track computes is on its stream; `batch` is what the track reads."""

    def join(self, made: Iterable[torch.Tensor]) -> None:
        """After the last step: what follows waits for all streams; `made` is what it reads of theirs."""


class OneStream:
    """All tracks on the stream that is there."""

    def of(self, track: str, batch: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self, made: Iterable[torch.Tensor]) -> None:
        """Nothing to wait for."""


ONE_STREAM = OneStream()


class TrackStreams:
    """Each track on its own CUDA stream. They live as long as the tracks: memory belongs to the stream it was made on.

    Args:
        names: of the tracks.
        device: the GPU.
    """

    def __init__(self, names: Iterable[str], device: torch.device):
        self._device = device
        self._streams = {name: torch.cuda.Stream(device) for name in names}

    @contextmanager
    def of(self, track: str, batch: Iterable[torch.Tensor]) -> Iterator[None]:
        stream = self._streams[track]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor in batch:
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            yield

    def join(self, made: Iterable[torch.Tensor]) -> None:
        current = torch.cuda.current_stream(self._device)
        for stream in self._streams.values():
            current.wait_stream(stream)
        for tensor in made:
            tensor.record_stream(current)


def streams_of(asked: bool, tracks: Mapping[str, ClientTrack], device: torch.device, site: str) -> Streams:
    """The streams of a site's tracks; where its setting `streams` has no effect, the log says why."""
    if not asked:
        return ONE_STREAM
    reader = next((name for name, track in tracks.items() if track.reads_others), None)
    if device.type != "cuda" or reader:
        why = f"the track {reader!r} reads another network while it is trained" if reader else f"{device} has none"
        log.warning("site %r: `streams: true` has no effect: %s", site, why)
        return ONE_STREAM
    return TrackStreams(tracks, device)
