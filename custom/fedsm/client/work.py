"""What all workers of a site share: the answer to a task, and the exception for a stopped job."""

from __future__ import annotations

from dataclasses import dataclass

from fedsm.core.tensors import Tensors


class Aborted(Exception):
    """The job was stopped while a site was at work."""


@dataclass
class Answer:
    """What a site sends for a task.

    Attributes:
        tracks: tensors by track.
        meta: plain values.
        sums: the tracks whose tensors are sums over images, not of a network.
    """

    tracks: dict[str, Tensors]
    meta: dict
    sums: list[str]
