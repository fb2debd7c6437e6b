"""A file in memory with a path: our readers take paths, and an upload must not touch the disk.

On Linux the path is a link to an anonymous file of the kernel (memfd), which ends with the process even if that is
killed. The link lies in a private temporary folder; neither has a word of the upload's in its name. Where there is no
memfd (macOS, Windows) the content passes through that folder and is removed at the end. A file whose name needs no
ending has no folder on Linux: it is opened by the kernel's own name for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def memory_files(contents: Sequence[bytes], ending: str) -> Iterator[list[Path]]:
    """A path for each of several contents, all in one folder, while the block runs."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsm_serve_")))
        yield [_put(stack, folder / f"upload-{i + 1}{ending}", content) for i, content in enumerate(contents)]


@contextlib.contextmanager
def memory_file(content: bytes, ending: str) -> Iterator[Path]:
    """A path with this content while the block runs; `ending` (`.nii.gz`; may be empty) is part of its name."""
    if sys.platform == "linux" and not ending:
        with _in_memory(content) as number:
            yield Path(f"/proc/self/fd/{number}")
        return
    with memory_files([content], ending) as (path,):
        yield path


def _put(stack: contextlib.ExitStack, path: Path, content: bytes) -> Path:
    if sys.platform == "linux":
        path.symlink_to(f"/proc/self/fd/{stack.enter_context(_in_memory(content))}")
    else:
        path.write_bytes(content)
    return path


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """The number of an open anonymous file."""
    with os.fdopen(os.memfd_create("fedsm-upload"), "wb") as handle:
        handle.write(content)
        handle.flush()
        yield handle.fileno()
