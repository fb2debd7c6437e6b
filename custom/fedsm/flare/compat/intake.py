"""Limits on what a process receives, held before it is stored.

An answer comes in two steps. First a message: plain values, and references to tensors. Then the receiver pulls the
tensors from the sender, piece by piece, and it can stop. Three limits:

    message    FLARE reads a message of any size up to 4 GiB into memory. `limit_messages` gives its readers a smaller
               limit; a larger message is refused at its first piece with an error to the sender, and never decoded.
    tensors    `expect` says how many bytes the answers to the open task may have. The pull stops above it, what was
               stored is removed, and the answer arrives with an `Unfetched` in the place of every tensor.
    values     `plain_problem` bounds what is not a tensor: bytes, entries, nesting, types.

An answer that cannot be pulled or decoded makes FLARE 2.9 end the job's process (`Adapter.call` in its
`cellnet/cell.py`): one site's message would end the run of all. So a failed pull becomes an `Unfetched` too, and an
answer that cannot be decoded becomes an empty one (`survive_undecodable`).

FLARE knows a message's sender only by what the sender writes itself. So a message that is refused as a whole is only
logged, and its site counts as one that gave no answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import nvflare.fuel.utils.fobs.dots as dots
from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell as flare_cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils import fobs

from fedsm.flare.compat import memory

_PULLED = "fedsm_pulled_bytes"  # in the context of one message: what was pulled for it so far

log = logging.getLogger(__name__)
_most_bytes: int | None = None  # of the answers to the open task; None: nothing is expected, and nothing bounded


class Unfetched:
    """Stands for tensors that were not pulled. To FLARE it is the mapping of all of them, and each of them."""

    def __init__(self, reason: str):
        self.reason = reason

    def __contains__(self, item_id: str) -> bool:
        return True

    def get(self, item_id: str) -> Unfetched:
        """The same object stands for every tensor."""
        return self

    def __len__(self) -> int:
        return 0


def expect(most_bytes: int | None) -> None:
    """Sets the most bytes that the tensors of one answer may have, from now on. None: no limit."""
    global _most_bytes
    _most_bytes = most_bytes


class _CountingCell:
    """A cell that counts what is pulled through it, and stops at the limit."""

    def __init__(self, cell: Any, fobs_ctx: dict, most: int):
        self._cell, self._fobs_ctx, self._most = cell, fobs_ctx, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell, name)

    def __hash__(self) -> int:  # FLARE has tables by cell, and this one must be found as the wrapped cell
        return hash(self._cell)

    def __eq__(self, other: object) -> bool:
        return other is self._cell or other is self

    def send_request(self, *args: Any, **kwargs: Any) -> Message:
        """The next piece, or an error in its place."""
        if self._fobs_ctx.get(_PULLED, 0) > self._most:
            return make_reply(ReturnCode.COMM_ERROR)
        memory.look()
        started = time.monotonic()
        reply = self._cell.send_request(*args, **kwargs)
        early = time.monotonic() - started < kwargs.get("timeout", 0) / 2
        if early and reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.TIMEOUT:
            # That is how FLARE reports a piece that `limit_messages` refused. It would be asked for three times more.
            return make_reply(ReturnCode.COMM_ERROR)
        data = reply.payload.get("data") if isinstance(reply.payload, dict) else None
        pieces = data if isinstance(data, list) else [data]
        size = sum(len(piece) for piece in pieces if isinstance(piece, (bytes, bytearray, memoryview)))
        self._fobs_ctx[_PULLED] = self._fobs_ctx.get(_PULLED, 0) + size
        return make_reply(ReturnCode.COMM_ERROR) if self._fobs_ctx[_PULLED] > self._most else reply


def pull(download: Callable[[dict, dict], object], fobs_ctx: dict, ref: dict) -> object:
    """Pulls the tensors of one reference within the limit.

    Args:
        download: FLARE's own function, called with the context and the reference.
        fobs_ctx: the context of the message.
        ref: where the tensors are.

    Returns:
        what FLARE makes of them, or an `Unfetched`.
    """
    most = _most_bytes
    if most is None:
        return download(fobs_ctx, ref)
    cell = fobs_ctx.get(fobs.FOBSContextKey.CELL)
    try:
        return download(fobs_ctx | {fobs.FOBSContextKey.CELL: _CountingCell(cell, fobs_ctx, most)}, ref)
    except Exception as e:
        if fobs_ctx.get(_PULLED, 0) > most:
            return Unfetched(f"oversized: more than {most} bytes of tensors, expected at most that")
        log.error("tensors of %s could not be pulled: %s", str(ref)[:200], e)
        return Unfetched(f"its tensors could not be fetched: oversized (at most {most} bytes), or the upload broke off")


def limit_arrays() -> None:
    """Pulls numpy arrays, into which a site's filter may have turned its tensors, within the same limit."""
    handler = fobs.get_dot_handler(dots.NUMPY_DOWNLOAD)
    if handler and "_download_from_remote_cell" not in vars(handler):
        download = handler._download_from_remote_cell
        handler._download_from_remote_cell = lambda fobs_ctx, ref: pull(download, fobs_ctx, ref)


def limit_messages(cells: list, most_bytes: int) -> None:
    """Lets these cells read no message above that many bytes."""
    for cell in cells:
        for callback in cell.byte_receiver.registry.reg.values():
            handler = getattr(callback.cb, "__self__", None)
            if isinstance(handler, BlobHandler):
                handler.max_blob_size = most_bytes


def survive_undecodable() -> None:
    """Turns an answer that cannot be decoded into an empty one, which belongs to no task that FLARE's server knows."""
    decode = flare_cell.decode_payload
    if getattr(decode, "fedsm", False):
        return

    def decode_payload(
        message: Message, encoding_key: str = MessageHeaderKey.PAYLOAD_ENCODING, fobs_ctx: dict | None = None
    ) -> None:
        try:
            decode(message, encoding_key, fobs_ctx)
        except Exception as e:
            if message.get_header(StreamHeaderKey.TOPIC) != ServerCommandNames.SUBMIT_UPDATE:
                raise
            origin = str(message.get_header(MessageHeaderKey.ORIGIN))[:100]
            log.error(
                "fedsm refused: an answer that says it is from %r cannot be decoded (%s)", origin, type(e).__name__
            )
            message.payload = Shareable()
            message.payload.set_peer_context(FLContext())
            message.remove_header(encoding_key)

    setattr(decode_payload, "fedsm", True)  # noqa: B010  mypy knows no attributes of functions
    flare_cell.decode_payload = decode_payload
