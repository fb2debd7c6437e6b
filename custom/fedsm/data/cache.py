"""A site's images, decoded and resized once, in files that are mapped, not loaded.

    <cache>/<key>/images.npy  (N, C, S, S) float16 in 0..1
                  labels.npy  (N, L, S, S) uint8
                  index.json  which rows belong to which file

The key is a digest of the files' content and of the settings that shape the result: a changed file or setting makes
another key. An entry is built beside its place and put there in one rename, so a killed build leaves none; a lock makes
a second process wait for the first instead of doing the work again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsm.data.site_folder import Pair

_FORMAT = 1
_INDEX = "index.json"


@dataclass(frozen=True)
class Cached:
    """A site's mapped arrays and the rows of each file."""

    images: np.ndarray
    labels: np.ndarray
    rows: dict[str, tuple[int, int]]  # stem -> first row, one past the last


def cache_key(pairs: list[Pair], shape: dict, digests: DigestBook) -> str:
    """The key of a site's entry.

    Args:
        pairs: the site's files.
        shape: the settings that shape the result (plain values).
        digests: what is known of the files' content.
    """
    content = [(p.stem, digests.of(p.image), digests.of(p.mask)) for p in pairs]
    return hashlib.sha256(json.dumps([_FORMAT, shape, content], sort_keys=True).encode()).hexdigest()[:32]


class DigestBook:
    """Digests of files, kept on disk: a file whose size and time are unchanged is not read again."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self._known = json.loads(path.read_text())
        except (OSError, ValueError):
            self._known = {}

    def of(self, file: Path) -> str:
        """The SHA-256 of a file's content."""
        state = file.stat()
        stamp = [state.st_size, state.st_mtime_ns]
        entry = self._known.get(str(file))
        if entry is None or entry[:2] != stamp:
            with file.open("rb") as f:
                entry = [*stamp, hashlib.file_digest(f, "sha256").hexdigest()]
            self._known[str(file)] = entry
        return entry[2]

    def save(self) -> None:
        """Writes the book, in one rename."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as f:
            json.dump(self._known, f)
        os.replace(f.name, self._path)


def open_or_build(
    folder: Path,
    key: str,
    pairs: list[Pair],
    convert: Callable[[Pair], tuple[np.ndarray, np.ndarray]],
    budget_bytes: int,
    progress: Callable[[int], None] | None = None,
) -> Cached:
    """Maps a site's entry, building it first where it is missing.

    Args:
        folder: the cache's folder.
        key: of `cache_key`.
        pairs: the site's files.
        convert: a pair to (slices, C, S, S) in 0..1 and (slices, L, S, S) of 0 and 1.
        budget_bytes: other entries are dropped, the longest unused first, until all fit.
        progress: called with 1 for each pair converted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entry = folder / key
    if not (entry / _INDEX).is_file():
        with _lock(folder / f"{key}.lock"):
            if not (entry / _INDEX).is_file():
                _build(folder, entry, pairs, convert, progress)
                _drop_old(folder, entry, budget_bytes)
    os.utime(entry)
    index = json.loads((entry / _INDEX).read_text())
    images = np.load(entry / "images.npy", mmap_mode="r")
    labels = np.load(entry / "labels.npy", mmap_mode="r")
    return Cached(images, labels, {stem: tuple(rows) for stem, rows in index["rows"].items()})


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Waits for whoever builds the same entry. The system lets go of the lock of a process that is killed."""
    with path.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _build(folder: Path, entry: Path, pairs: list[Pair], convert, progress) -> None:
    for left in folder.glob(f".{entry.name}.*"):  # of builds that were killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=folder))
    try:
        rows: dict[str, tuple[int, int]] = {}
        count = 0
        # Written pair by pair, without holding a site in memory; the headers are put in front when N is known.
        with (partial / "images.raw").open("wb") as image_file, (partial / "labels.raw").open("wb") as label_file:
            for pair in pairs:
                images, labels = convert(pair)
                image_file.write(np.ascontiguousarray(images, dtype=np.float16).data)
                label_file.write(np.ascontiguousarray(labels, dtype=np.uint8).data)
                rows[pair.stem] = (count, count + len(images))
                count += len(images)
                if progress:
                    progress(1)
        for name, like, dtype in (("images", images, np.float16), ("labels", labels, np.uint8)):
            _add_header(partial / f"{name}.raw", partial / f"{name}.npy", (count, *like.shape[1:]), dtype)
        (partial / _INDEX).write_text(json.dumps({"rows": rows}))
        os.replace(partial, entry)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _add_header(raw: Path, target: Path, shape: tuple[int, ...], dtype) -> None:
    """Turns raw values into a .npy file."""
    with target.open("wb") as f, raw.open("rb") as source:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(f, header)
        shutil.copyfileobj(source, f, 1024 * 1024)
    raw.unlink()


def _drop_old(folder: Path, keep: Path, budget_bytes: int) -> None:
    entries = [p for p in folder.iterdir() if (p / _INDEX).is_file()]
    sizes = {p: sum(f.stat().st_size for f in p.iterdir()) for p in entries}
    total = sum(sizes.values())
    for entry in sorted(entries, key=lambda p: p.stat().st_mtime):
        if total <= budget_bytes:
            return
        if entry != keep:
            shutil.rmtree(entry, ignore_errors=True)
            total -= sizes[entry]
