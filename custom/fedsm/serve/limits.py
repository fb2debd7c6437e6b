"""What one service may be asked for, and how it refuses: every refusal is a 4xx or 503 with one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from fedsm.core.errors import UserError

MIB = 1024**2


@dataclass(frozen=True)
class ServeLimits:
    """Bounds on memory and time.

    Attributes:
        upload: bytes of one upload.
        files: of one upload: the slices of a DICOM series, in a zip or not.
        uploads: bytes of all uploads that are being worked on.
        memory: bytes that all of them take, as estimated from their headers; a larger one alone waits for all others.
        pixels: pixels of a picture.
        volume: bytes of a volume when it is decoded, and of its slices at the network's size.
        jobs: requests that are worked on or wait; more are told to come back.
        seconds: for receiving an upload, and for answering it.
        batch: images that the networks see at once.
        readers: threads that decode and encode.
        results: answers that are kept in memory.
        results_bytes: bytes that they may take; the oldest go first.
        results_seconds: how long one is kept.
    """

    upload: int = 256 * MIB
    files: int = 1000
    uploads: int = 1024 * MIB
    memory: int = 3072 * MIB
    pixels: int = 50_000_000
    volume: int = 512 * MIB
    jobs: int = 64
    seconds: float = 120.0
    batch: int = 8
    readers: int = 2
    results: int = 200
    results_bytes: int = 1024 * MIB
    results_seconds: float = 1800.0


class Refused(UserError):
    """A request that is refused: `status` is HTTP's; the message and the remedy go to the client."""

    def __init__(self, status: int, message: str, remedy: str | None = None):
        self.status = status
        super().__init__(message, remedy=remedy)


def busy() -> Refused:
    """Too much is going on."""
    return Refused(503, "the service is busy", "try again in a few seconds")
