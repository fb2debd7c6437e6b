"""What all workers of a site share: what is checked of a task, its answer, and the exception for a stopped job."""

from __future__ import annotations

from dataclasses import dataclass

from fedsm.core.errors import UserError
from fedsm.core.limits import MOST_ROUND, is_whole, shown
from fedsm.core.names import check_run_id, check_site_names
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


def check_task(meta: dict) -> tuple[str, list[str]]:
    """The run's id and the names of its sites, which come from the server and become names of files here.

    Raises:
        UserError: one is missing or invalid.
    """
    where = "the server's task"
    if not is_whole(meta.get("round"), 0, MOST_ROUND):
        raise UserError(f"{where}: {shown(meta.get('round'))} is no round", public="refused: no round")
    return check_run_id(meta.get("run_id"), where), check_site_names(meta.get("sites"), where)
