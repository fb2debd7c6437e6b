"""Reads the file that Weights & Biases writes offline: a LevelDB log, whose records are protobuf messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # a record, or its pieces


def history(folder: Path) -> list[dict]:
    """What the one run in a folder of wandb logged, a dict for each step."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.rglob("*.wandb")
    rows = []
    for data in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if items := record.history.item:
            rows.append({".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
    return rows


def _records(content: bytes) -> Iterator[bytes]:
    at, pieces = _FILE_HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:  # the rest of a block is filled up
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + _HEADER])
        pieces += content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_FULL, _LAST):
            yield pieces
            pieces = b""
