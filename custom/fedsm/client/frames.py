"""How tensors pass between a site's FLARE process and its trainer process: no pickle, no file, one copy each way.

A frame is the length of a JSON text (8 bytes), that text, and the bytes of the tensors it lists, in its order. They
are sent from the tensors' own memory and received into that of the new tensors, so each process holds a payload once.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable

import torch

from fedsm.core.tensors import Tensors

_LENGTH = struct.Struct("!Q")


def _wait() -> None:
    """Does nothing, so that the waiting goes on."""


def send(sock: socket.socket, header: dict, tracks: dict[str, Tensors], waiting: Callable[[], None] = _wait) -> None:
    """Sends one frame.

    Args:
        sock: the connection.
        header: plain values.
        tracks: tensors by track; each is removed from its dict as it is sent.
        waiting: called whenever the socket's timeout has passed; it may raise to give up.
    """
    layout = [
        [track, key, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for track, tensors in tracks.items()
        for key, tensor in tensors.items()
    ]
    text = json.dumps({"header": header, "layout": layout}).encode()
    _send(sock, memoryview(_LENGTH.pack(len(text)) + text), waiting)
    for tensors in tracks.values():
        for key in list(tensors):
            _send(sock, _bytes_of(tensors.pop(key).detach().cpu().contiguous()), waiting)


def receive(sock: socket.socket, waiting: Callable[[], None] = _wait) -> tuple[dict, dict[str, Tensors]]:
    """Waits for one frame.

    Returns:
        its header and its tensors by track; a track without tensors is left out.

    Raises:
        EOFError: the other side is gone.
    """
    length = bytearray(_LENGTH.size)
    _fill(sock, memoryview(length), waiting)
    text = bytearray(_LENGTH.unpack(length)[0])
    _fill(sock, memoryview(text), waiting)
    frame = json.loads(text)
    tracks: dict[str, Tensors] = {}
    for track, key, dtype, shape in frame["layout"]:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        _fill(sock, _bytes_of(tensor), waiting)
        tracks.setdefault(track, {})[key] = tensor
    return frame["header"], tracks


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor, whatever its dtype."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _send(sock: socket.socket, data: memoryview, waiting: Callable[[], None]) -> None:
    while len(data):
        try:
            data = data[sock.send(data) :]
        except TimeoutError:
            waiting()


def _fill(sock: socket.socket, data: memoryview, waiting: Callable[[], None]) -> None:
    while len(data):
        try:
            count = sock.recv_into(data)
        except TimeoutError:
            waiting()
            continue
        if not count:
            raise EOFError
        data = data[count:]
