"""Where a site keeps the converted copy of its DICOM files, and the opaque names in it."""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedsm.core.files import write_bytes
from fedsm.core.task_settings import TaskSettings

FOLDER, KEY = "dicom", "dicom.key"
_KEY_BYTES = 32


@dataclass(frozen=True)
class ImportPlace:
    """Where a site's converted files live.

    Attributes:
        folder: private to the site; may be deleted at any time.
        key_file: the secret that makes names of patients and images opaque; made when it is missing. It must last as
            long as the split, which names the images. None: research on one machine, where the key follows from the
            site's name, so that every process finds the same split.
    """

    folder: Path
    key_file: Path | None = None

    def key(self, site: str) -> bytes:
        """The key of the site."""
        if self.key_file is None:
            return hashlib.sha256(f"fedsm research site {site}".encode()).digest()
        if not self.key_file.is_file():
            self.key_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_bytes(self.key_file, secrets.token_bytes(_KEY_BYTES))
        return self.key_file.read_bytes()

    def for_task(self, task: TaskSettings) -> Path:
        """The folder of a task: the values of a mask depend on its labels."""
        codes = {label: code.to_dict() for label, code in task.codes.items()}
        text = json.dumps([task.labels, task.background, codes])
        return self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]


def opaque(key: bytes, kind: str, *identity: str) -> str:
    """A name that nobody without the key can trace back."""
    return hmac.new(key, "\0".join([kind, *identity]).encode(), hashlib.sha256).hexdigest()[:16]


def passing_place(folder: Path) -> ImportPlace:
    """A private place for one process: deleted when it ends."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return ImportPlace(Path(_temporary().name) / name)


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fedsm_dicom_")
