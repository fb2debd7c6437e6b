"""Keeps what FLARE receives out of the server's memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from nvflare.app_common.utils.tensor_disk_offload_context import _TENSOR_DISK_OFFLOAD_ROOT_DIR as ROOT_DIR
from nvflare.fuel.utils.fobs import FOBSContextKey

from fedsm.server.incoming import incoming_folder

_GROWTH = 4 * 1024 * 1024  # bytes after which messages are collected


def job_cells(engine: Any) -> list:
    """The cells through which answers may come."""
    cells = [engine.get_cell(), getattr(getattr(engine, "server", None), "job_cell", None)]
    return [cell for cell in dict.fromkeys(cells) if cell]


@contextmanager
def received_to_disk(engine: Any, job_id: str) -> Iterator[None]:
    """Lets what the sites send go to the server's disk, to be read one answer at a time.

    FLARE's own switch sets this for the engine's cell, and puts the files into the system's temporary folder. In a
    deployment that cell is the one that receives; in the simulator it is not: there the server's job cell receives,
    and answers of all sites would pile up in memory.

    Args:
        engine: the server's engine.
        job_id: names the folder; see `incoming`.
    """
    root = Path(engine.get_workspace().get_root_dir())
    with ExitStack() as stack:
        switch: dict[str, Any] = {FOBSContextKey.TENSOR_DISK_OFFLOAD: True}
        switch[ROOT_DIR] = str(stack.enter_context(incoming_folder(root, job_id)))
        for cell in job_cells(engine):
            before = {key: cell.get_fobs_context().get(key) for key in switch}
            cell.update_fobs_context(switch)
            stack.callback(cell.update_fobs_context, before)
        yield


class MessageCollector:
    """Frees the messages of finished transfers: FLARE leaves them in reference cycles, each with its payload.

    Looks at the process's size, which costs microseconds, and collects when it has grown. Whoever sends tasks looks
    while it waits, and so does every thread that is about to send or fetch a piece of a network (`look`): on a busy
    machine the one that waits comes too late.
    """

    def __init__(self) -> None:
        global _current
        self._process = psutil.Process()
        self._floor = self._process.memory_info().rss
        _current = self

    def look(self) -> None:
        """To be called often while transfers are under way."""
        size = self._process.memory_info().rss
        if size > self._floor + _GROWTH:
            gc.collect()
            size = self._process.memory_info().rss
            self._floor = size
        self._floor = min(self._floor, size)


_current: MessageCollector | None = None  # the server's; None at the sites


def look() -> None:
    """Lets the server's collector look, before more memory is taken; does nothing at the sites."""
    if _current:
        _current.look()
