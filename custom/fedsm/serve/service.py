"""From an upload to a result: what the page, the REST addresses and MONAI Label's protocol share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request

from fedsm.core.files import replacing_folder, write_bytes, write_json
from fedsm.serve.budget import Budget
from fedsm.serve.choices import options_of
from fedsm.serve.form import Form, length_of, read_form
from fedsm.serve.limits import Refused, ServeLimits, busy
from fedsm.serve.result import MASK_DICOM, MASK_NIFTI, MASK_PNG, Result, make_result
from fedsm.serve.store import Store
from fedsm.serve.upload import PICTURE, Upload, memory_of, read_upload
from fedsm.serve.worker import Worker
from fedsm.super_model.model import SuperModel

log = logging.getLogger(__name__)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Session:
    """An image that MONAI Label's client uploads once and asks about several times."""

    files: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return sum(map(len, self.files))


class Service:
    """One super model, its worker, and what is kept in memory.

    Args:
        model: the super model.
        limits: what may be asked for.
        keep: a folder in which every upload and its masks are kept; None: nothing touches the disk.
    """

    def __init__(self, model: SuperModel, limits: ServeLimits | None = None, keep: Path | None = None):
        self.model, self.limits, self.keep = model, limits or ServeLimits(), keep
        self.results: Store[Result] = Store(self.limits, "result")
        self.sessions: Store[Session] = Store(self.limits, "session")
        self._worker = Worker(model, self.limits.batch)
        self._readers = ThreadPoolExecutor(self.limits.readers, "fedsm-readers")
        self._budget = Budget(self.limits.memory)
        self._jobs = self._bytes = 0  # of requests that are worked on; only the event loop changes them

    def close(self) -> None:
        """Ends the threads and forgets everything."""
        self._worker.close()
        self._readers.shutdown(cancel_futures=True)
        self.results.clear()
        self.sessions.clear()

    @contextlib.asynccontextmanager
    async def form_of(self, request: Request) -> AsyncIterator[Form]:
        """The form of a request, which has a place among the jobs while the block runs.

        Raises:
            Refused: it is no form, or there is no place.
        """
        length = length_of(request, self.limits)
        with self._place(length):
            yield await read_form(request, self.limits)

    @contextlib.contextmanager
    def _place(self, length: int) -> Iterator[None]:
        if self._jobs >= self.limits.jobs or self._bytes + length > self.limits.uploads:
            raise busy()
        self._jobs, self._bytes = self._jobs + 1, self._bytes + length
        try:
            yield
        finally:
            self._jobs, self._bytes = self._jobs - 1, self._bytes - length

    @property
    def jobs(self) -> int:
        """Requests that are worked on."""
        return self._jobs

    async def predict(self, files: Sequence[bytes], choice: str) -> Result:
        """Segments an upload.

        Args:
            files: the file, or those of a DICOM series.
            choice: a network's name, or an empty word.

        Raises:
            Refused: it cannot be used, or took too long.
        """
        started = time.perf_counter()
        choice, options = options_of(self.model, choice)
        try:
            async with asyncio.timeout(self.limits.seconds):
                size = await self.in_thread(lambda: memory_of(files, self.model, self.limits))
                async with self._budget.take(size):
                    upload = await self.in_thread(lambda: read_upload(files, self.model, self.limits))
                    batch = await asyncio.wrap_future(self._worker.submit(upload.pixels, options))
                    name = secrets.token_urlsafe(16)
                    result = await self.in_thread(lambda: make_result(self.model, upload, choice, batch, name, started))
                    if self.keep:
                        await self.in_thread(lambda: self._write(upload, result))
        except TimeoutError as e:
            raise Refused(503, f"took longer than {self.limits.seconds:g} s", "try a smaller image, or later") from e
        self.results.put(name, result)
        return result

    async def in_thread(self, work: Callable[[], Found]) -> Found:
        """Does something that takes long, in one of the threads that read and write."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def _write(self, upload: Upload, result: Result) -> None:
        """Keeps an upload and what came of it, in a folder of its own that only its owner can read."""
        assert self.keep is not None
        try:
            with replacing_folder(self.keep / time.strftime(f"%Y%m%d-%H%M%S-{result.answer.id}")) as folder:
                ending = "" if upload.ending == PICTURE else upload.ending
                for number, content in enumerate(upload.files, 1):
                    write_bytes(folder / f"image{f'-{number}' * (len(upload.files) > 1)}{ending}", content)
                write_bytes(folder / MASK_NIFTI, result.nifti)
                if result.seg:
                    write_bytes(folder / MASK_DICOM, result.seg)
                if not upload.is_volume:
                    with contextlib.suppress(Refused):  # PNG does not hold the values; NIfTI does
                        write_bytes(folder / MASK_PNG, result.mask_png(1))
                write_json(folder / "answer.json", result.answer.plain())
        except OSError as e:
            log.error("the result cannot be kept: %s", e.strerror or e)
            raise Refused(507, "the result cannot be kept", "ask whoever runs the service: its disk may be full") from e
