"""How tracks are sent: a FLARE COLLECTION of DXOs, one per track, and everything else in its meta.

Every value of the collection is a DXO and every scalar is in the meta: FLARE's site filters read only such a
collection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from fedsm.core import task_names
from fedsm.core.plain_values import plain_problem
from fedsm.core.state import as_tensor
from fedsm.core.tensors import Tensors
from fedsm.flare.compat import intake

REGISTER, TRAIN, VALIDATE, EVALUATE = TASKS = task_names.TASKS
MIX, SUM, OPEN = task_names.MIX, task_names.SUM, task_names.OPEN
_MOST_TRACKS = 1000  # of a shareable; a super model of as many sites has one network for each
_DXO_KEY = "DXO"  # where FLARE's `DXO.to_shareable` puts the content
EXCLUDE_FILTER = "ExcludeVars"  # the name that FLARE's filter writes into a DXO
ERROR_HEADER = "fedsm_error"  # why a site could not do its task, without file names
UNREADY_HEADER = "fedsm_unready"  # true: a person at the site must act first, so that asking again is of no use


class BadShareable(Exception):
    """A shareable that cannot be read as one of ours; the message says why."""


def pack(tracks: Mapping[str, Tensors], meta: dict, kind: str | dict[str, str] = DataKind.WEIGHTS) -> Shareable:
    """Tracks and meta to a shareable. Tracks without tensors are left out.

    Args:
        tracks: track name -> tensors.
        meta: plain values.
        kind: FLARE's data kind of the tensors, which site filters go by; one for all tracks, or one for each.
    """
    kinds = kind if isinstance(kind, dict) else dict.fromkeys(tracks, kind)
    dxos = {name: DXO(kinds[name], data=dict(tensors)) for name, tensors in tracks.items() if tensors}
    return DXO(DataKind.COLLECTION, data=dxos, meta=meta).to_shareable()


def unpack(
    shareable: Shareable, most_bytes: int | None = None, problem: Callable[[dict], str | None] = lambda meta: None
) -> tuple[dict, dict[str, Tensors]]:
    """The meta and the tracks of a shareable.

    Args:
        shareable: what was received.
        most_bytes: the most that its tensors may have; a larger one is refused before any of them is read.
        problem: returns what is wrong with the meta, or None; called before any tensor is read.

    Raises:
        BadShareable: anything but a COLLECTION of DXOs of arrays, or more than `intake` allows.
    """
    try:
        dxo = from_shareable(shareable)
    except Exception as e:
        raise BadShareable(f"not a DXO ({type(e).__name__})") from e
    if dxo.data_kind != DataKind.COLLECTION or not isinstance(dxo.data, dict):
        raise BadShareable(f"data kind is {str(dxo.data_kind)[:40]!r}, expected COLLECTION")
    if not isinstance(dxo.meta, dict):
        raise BadShareable("its meta is no mapping")
    if len(dxo.data) > _MOST_TRACKS:
        raise BadShareable(f"oversized: {len(dxo.data)} tracks, expected at most {_MOST_TRACKS}")
    metas = [dxo.meta, list(dxo.data), *(getattr(part, "meta", None) for part in dxo.data.values())]
    if reason := plain_problem(metas) or problem(dxo.meta):
        raise BadShareable(reason)
    for name, part in dxo.data.items():
        if not isinstance(part, DXO) or not isinstance(part.data, dict):
            raise BadShareable(f"track {str(name)[:40]!r} is no DXO")
        for value in part.data.values():
            if isinstance(value, intake.Unfetched):
                raise BadShareable(value.reason)
    size = _stored_bytes(v for part in dxo.data.values() for v in part.data.values())
    if most_bytes is not None and size > most_bytes:
        raise BadShareable(f"oversized: {size} bytes, expected at most {most_bytes}")
    tracks: dict[str, Tensors] = {}
    for name, part in dxo.data.items():
        try:
            tracks[name] = {k: as_tensor(v) for k, v in part.data.items()}
        except Exception as e:
            raise BadShareable(f"track {str(name)[:40]!r}: {e}") from e
    return dxo.meta, tracks


def _stored_bytes(values: Iterable) -> int:
    """Bytes of a shareable's entries, without reading those that FLARE received to disk: there, of their files."""
    files: set[str] = set()
    size = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            size += value.numel() * value.element_size()
        elif isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(path := getattr(value, "file_path", None), str):
            files.add(path)
    return size + sum(os.path.getsize(path) for path in files)


def excluding(shareable: Shareable) -> list[str]:
    """The tracks from which FLARE's `ExcludeVars` may have removed entries: filters add their names to a DXO."""
    parts = from_shareable(shareable).data
    return [name for name, part in parts.items() if EXCLUDE_FILTER in (part.get_filter_history() or [])]


def forget(shareable: Shareable) -> None:
    """Drops the tensors of a shareable that was unpacked: FLARE holds it until its task is over."""
    shareable.pop(_DXO_KEY, None)
