"""Batches on their way to a device, so that neither waits for the other.

On CUDA a thread makes the next batches in pinned memory, and a stream of its own copies each while the batch before it
is computed with. The host never waits for the device: the streams wait for each other. On a CPU there is nothing to
copy, and no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import islice
from typing import Protocol

import torch

Staged = tuple[torch.Tensor, ...]
Load = Callable[[], Staged]  # makes a batch's tensors in the host's memory

_READY = 2  # batches that wait in the host's memory


class Copies(Protocol):
    """Copies batches to a device."""

    def start(self, tensors: Staged) -> Staged:
        """Begins a copy; what it returns may not be used before `ready`."""

    def ready(self, tensors: Staged) -> Staged:
        """The same tensors, for use by what is computed from now on. Called in the order of `start`."""


class StreamCopies:
    """Copies by a CUDA stream of its own; whoever computes waits for it on the device, not on the host."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._done: deque[torch.cuda.Event] = deque()

    def start(self, tensors: Staged) -> Staged:
        with torch.cuda.stream(self._stream):
            copied = tuple(t.to(self._device, non_blocking=True) for t in tensors)
        self._done.append(self._stream.record_event())
        return copied

    def ready(self, tensors: Staged) -> Staged:
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._done.popleft())
        for tensor in tensors:
            tensor.record_stream(current)  # its memory is not given away before this stream is through with it
        return tensors


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of one small tensor, for which the host does not wait: CUDA copies pinned memory only in that way."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def staged(loads: Iterable[Load], device: torch.device, pin: bool = True) -> Iterator[Staged]:
    """The batches on the device, in their order.

    Args:
        loads: make the batches. They are asked for here, one after the other, and called in a thread on CUDA: what
            draws random numbers belongs into the asking.
        device: where to.
        pin: whether to go through pinned memory (CUDA).
    """
    if device.type != "cuda":
        for load in loads:
            yield tuple(tensor.to(device) for tensor in load())
        return
    # A thread has a current device of its own, on which pinning would make a context: not on another job's GPU.
    with ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        pinned = (lambda load=load: tuple(t.pin_memory() for t in load()) for load in loads)
        yield from one_ahead(pinned if pin else loads, pool, StreamCopies(device))


def one_ahead(loads: Iterable[Load], pool: Executor, copies: Copies) -> Iterator[Staged]:
    """Makes batches in a pool, and begins to copy each of them before the one before it is handed over."""
    todo = iter(loads)
    waiting: deque[Future[Staged]] = deque(pool.submit(load) for load in islice(todo, _READY))
    copying: deque[Staged] = deque()
    try:
        while waiting or copying:
            while waiting and len(copying) < 2:
                copying.append(copies.start(waiting.popleft().result()))
                waiting.extend(pool.submit(load) for load in islice(todo, 1))
            yield copies.ready(copying.popleft())
    finally:
        for future in waiting:
            future.cancel()
