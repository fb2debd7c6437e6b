"""A site's images, decoded and resized once, in memory-mapped files.

Written by hand: joblib and diskcache pickle or copy whole objects. Here an image is read from the page cache when it is
used, so a site's images need not fit into memory, several processes share one copy, and no code is ever unpickled.

    <folder>/<key>/images.f32     (N, C, S, S) float32 in 0..1: all images of the site, in the files' order
                   labels.u8      (N, L, S, S) uint8
                   manifest.json  shapes, and how many rows each file has; a lock on it says that the entry is in use
             digests.json         digests of the files' content
             lock                 held while an entry is looked for, built or dropped; never deleted

The key is a digest of the files' content and of everything that shapes the result: a changed file or setting gives
another key. An entry is built in a temporary folder and put in place by one rename, so a killed build leaves no entry.
A second process waits for the first. If the file system has no locks, both build, the first to finish wins, and nothing
is dropped.

The folder never outgrows its budget: room is made before an entry is built, and an entry without room is not built.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from fedsm.core.errors import UserError
from fedsm.core.file_lock import locked, try_lock
from fedsm.core.files import SHARED_PARTIAL
from fedsm.data.digests import content_key
from fedsm.data.site_folder import Pair

_IMAGES, _LABELS, _MANIFEST = "images.f32", "labels.u8", "manifest.json"
_MANIFEST_BYTES, _COUNT_BYTES = 256, 16  # the largest size of a manifest, and of each file's count in it
_FORMAT = 1
_KEY = re.compile(r"[0-9a-f]{32}")  # only what is named like this is ever deleted

log = logging.getLogger(__name__)

Decoded = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class SiteCache:
    """Where and how a site caches.

    Attributes:
        folder: this site's own folder in the cache.
        budget: bytes that it may hold. The entries that were not used for the longest time make room for a new one.
        workers: threads that read while an entry is looked for.
    """

    folder: Path
    budget: int
    workers: int = 1


@dataclass(frozen=True)
class Entry:
    """A mapped entry; in use for as long as it lives."""

    images: np.ndarray
    labels: np.ndarray
    counts: list[int]  # rows of each file
    in_use: IO

    def rows(self, files: list[int]) -> torch.Tensor:
        """The rows of these files, in this order."""
        ends = np.cumsum(self.counts)
        return torch.cat([torch.arange(ends[i] - self.counts[i], ends[i]) for i in files])


class CacheFull(Exception):
    """An entry of `need` bytes has no room within the budget."""

    def __init__(self, need: int):
        super().__init__(f"{need} bytes")
        self.need = need


def open_entry(
    cache: SiteCache, site: str, pairs: list[Pair], shaping: dict, decode: Callable[[], Decoded], need: int = 0
) -> Entry:
    """Maps a site's entry; builds it first if it is missing or damaged.

    Args:
        cache: where.
        site: the site's name.
        pairs: its files.
        shaping: all settings that shape the result, as plain values.
        decode: yields the files one after the other, as (slices, C, S, S) float32 and (slices, L, S, S) uint8.
        need: how many bytes the decoded images will take; 0: unknown. They are counted again while they are written.

    Raises:
        CacheFull: there is no room for it. Nothing is left behind.
        OSError: the folder cannot be used, or a file cannot be read.
        UserError: a file changed in the meantime.
    """
    cache.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # it holds patients' images

    def key_now() -> str:
        return content_key(cache.folder / "digests.json", pairs, [_FORMAT, shaping], cache.workers)

    key = key_now()
    entry_dir = cache.folder / key
    with locked(cache.folder / "lock", site) as have_lock:
        if have_lock:
            _sweep(cache.folder)
        extra = _MANIFEST_BYTES + _COUNT_BYTES * len(pairs)
        room = _make_room(cache, site, entry_dir, need + extra, have_lock) - extra
        entry = _map(entry_dir)
        if entry is None:
            shutil.rmtree(entry_dir, ignore_errors=True)  # damaged
            with _partial(entry_dir) as partial:
                _build(partial, site, decode, room)
                if key_now() != key:
                    where = pairs[0].image.parent.parent
                    raise UserError(f"files in {where} changed while they were read", site=site, remedy="start again")
            entry = _map(entry_dir)
            if entry is None:
                raise OSError(f"{entry_dir} cannot be read back")
        with contextlib.suppress(OSError):  # a read-only cache can be used as well
            os.utime(entry_dir / _MANIFEST)
    return entry


def _map(entry_dir: Path) -> Entry | None:
    """Opens an entry; None if there is none, or if its files do not have the sizes given in its manifest."""
    with contextlib.ExitStack() as stack:
        try:
            manifest = stack.enter_context((entry_dir / _MANIFEST).open(encoding="utf-8"))
            with contextlib.suppress(OSError):
                try_lock(manifest, shared=True)
            content = json.load(manifest)
            arrays = []
            for name, dtype in ((_IMAGES, np.float32), (_LABELS, np.uint8)):
                # Read-only: a private map that may be written would count as memory, and could not be larger than it.
                array = np.memmap(entry_dir / name, dtype, mode="r").reshape(sum(content["counts"]), *content[name])
                arrays.append(np.asarray(array))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        stack.pop_all()  # stays open: its lock says that the entry is in use
        images, labels = arrays
        return Entry(images, labels, content["counts"], manifest)


@contextlib.contextmanager
def _partial(entry_dir: Path) -> Iterator[Path]:
    """A folder beside `entry_dir` that is renamed to it at the end, if all went well."""
    partial = Path(tempfile.mkdtemp(prefix=SHARED_PARTIAL, dir=entry_dir.parent))
    try:
        yield partial
        try:
            os.rename(partial, entry_dir)
        except OSError:
            if _map(entry_dir) is None:
                raise
            # No locks here, and another process was first: its entry is as good as ours.
        _sync_folder(entry_dir.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(folder: Path, site: str, decode: Callable[[], Decoded], room: int) -> None:
    started = time.monotonic()
    log.info("site %r: decoding its images to %s", site, folder.parent)
    manifest = _write(folder, decode(), room)
    with (folder / _MANIFEST).open("w", encoding="utf-8") as f:
        json.dump(manifest, f)
        _to_disk(f)
    _sync_folder(folder)
    count, seconds = sum(manifest["counts"]), time.monotonic() - started
    log.info("site %r: %d images in %.1f s, %.1f images/s", site, count, seconds, count / max(seconds, 1e-9))


def _write(folder: Path, decoded: Decoded, room: int) -> dict:
    """Writes file by file, so that a site need not fit into memory; returns the manifest.

    Raises:
        CacheFull: it takes more than `room` bytes, whatever the headers said.
    """
    counts, shapes, written = [], {}, 0
    with (folder / _IMAGES).open("wb") as image_file, (folder / _LABELS).open("wb") as label_file:
        for images, labels in decoded:
            written += images.numel() * 4 + labels.numel()
            if written > room:
                raise CacheFull(written)
            image_file.write(np.ascontiguousarray(images.numpy(), dtype=np.float32).data)
            label_file.write(np.ascontiguousarray(labels.numpy(), dtype=np.uint8).data)
            counts.append(len(images))
            shapes = {_IMAGES: list(images.shape[1:]), _LABELS: list(labels.shape[1:])}
        _to_disk(image_file)
        _to_disk(label_file)
    return shapes | {"counts": counts}


def _to_disk(file: IO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes a rename survive a power failure; some file systems cannot do this for folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sweep(folder: Path) -> None:
    """Removes what killed builds left; we hold the lock, so no other process is at work there."""
    for left in folder.glob(f"{SHARED_PARTIAL}*/"):
        shutil.rmtree(left, ignore_errors=True)


def _make_room(cache: SiteCache, site: str, entry_dir: Path, need: int, locked: bool) -> int:
    """Drops the least recently used entries until the one at `entry_dir` fits; returns the bytes that it may take.

    Raises:
        CacheFull: it does not fit, even without all unused entries.
    """
    entries = [p for p in cache.folder.iterdir() if _KEY.fullmatch(p.name) and (p / _MANIFEST).is_file()]
    sizes = {p: sum(f.stat().st_size for f in p.iterdir()) for p in entries}
    need = max(need, sizes.get(entry_dir, 0))
    used = {p: not locked or _is_used(p) for p in entries}
    room = cache.budget - sum(sizes[p] for p in entries if used[p] and p != entry_dir)
    if need > room:
        if entry_dir in sizes and not used[entry_dir] and need > cache.budget:  # the budget was larger once
            _drop(entry_dir, site)
        raise CacheFull(need)
    total = sum(size for p, size in sizes.items() if p != entry_dir)
    for other in sorted(entries, key=lambda p: (p / _MANIFEST).stat().st_mtime_ns):
        if total + need > cache.budget and other != entry_dir and not used[other]:
            _drop(other, site)
            total -= sizes[other]
    return cache.budget - total


def _drop(entry_dir: Path, site: str) -> None:
    log.info("site %r: dropping the cache entry %s, the least recently used", site, entry_dir)
    shutil.rmtree(entry_dir, ignore_errors=True)


def _is_used(entry_dir: Path) -> bool:
    with (entry_dir / _MANIFEST).open() as manifest:
        return not try_lock(manifest, shared=False)
