"""How a site reports an exception: in full in its own log, and without file names to the server."""

from __future__ import annotations

import errno
import traceback

import torch

from fedsm.core.errors import UserError

OUT_OF_MEMORY = "out of memory at the site: a smaller batch_size or size may help, or fewer programs beside it"
# How torch and C++ say it: in exceptions without a type of their own, and in the last lines of a process.
_WORDS = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "failed to allocate",
    "bad allocation", "bad_alloc", "memoryerror",
)  # fmt: skip

_FULL, _CLOSED = "the site's disk is full: it must make room", "the site may not use a file or folder of its own"
_DISK = {
    errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EROFS: "a disk of the site is read-only: it needs another",
    errno.EACCES: _CLOSED, errno.EPERM: _CLOSED,
}  # fmt: skip


def explain(error: Exception) -> UserError:
    """The same failure as an error with a public form; call it where the exception was caught."""
    if isinstance(error, UserError):
        return error
    if is_out_of_memory(error):
        return UserError(
            f"{OUT_OF_MEMORY} ({type(error).__name__}: {' '.join(str(error).split())})", public=OUT_OF_MEMORY
        )
    if isinstance(error, OSError) and error.errno in _DISK:
        reason = _DISK[error.errno]
        return UserError(
            f"{error.strerror}: {reason} (state_dir and cache_dir are in fedsm_site.yaml)",
            file=error.filename or None,
            public=reason,
        )
    return UserError(traceback.format_exc(), public=type(error).__name__)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the GPU or of the machine."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and speaks_of_memory(str(error))


def speaks_of_memory(text: str) -> bool:
    """Whether a message says that memory ran out."""
    return any(word in text.lower() for word in _WORDS)
