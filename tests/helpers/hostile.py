"""A hostile site in the federation of one process: what it may change of its answers."""

from __future__ import annotations

from collections.abc import Callable

from fedsm.flare import exchange
from tests.helpers.federation import Fault

HOSTILE = "site-3"


def on(task: str, change: Callable, site: str = HOSTILE) -> Fault:
    """A fault in which one site changes its answers to one task; `change` is given the answer's DXO content."""

    def fault(who, name, shareable, work):
        result = work()
        if who.name == site and name == task:
            change(result)
        return result

    return fault


def meta_of(result) -> dict:
    """The meta of an answer, to be changed."""
    return result["DXO"]["meta"]


def parts_of(meta: dict) -> list[dict]:
    """What an answer to the evaluation says of validation or of test images; empty for other tasks."""
    return [meta["evaluation"]] if "evaluation" in meta else []


def scale_updates(result, factor: float) -> None:
    """Multiplies all that an answer holds."""
    for part in result["DXO"]["data"].values():
        part.data = {k: v * factor if v.is_floating_point() else v for k, v in part.data.items()}


TRAIN, REGISTER, EVALUATE = exchange.TRAIN, exchange.REGISTER, exchange.EVALUATE
