"""A FLARE filter on what a site sends after training: loses the answer, or damages it."""

from __future__ import annotations

import math

from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

LOST = "lost"


def _nan(dxo: DXO) -> None:
    tensors = dxo.data["personal"].data
    name = next(iter(tensors))
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = math.nan


def _shape(dxo: DXO) -> None:
    tensors = dxo.data["global"].data
    name = next(iter(tensors))
    tensors[name] = tensors[name].unsqueeze(0)


def _key(dxo: DXO) -> None:
    tensors = dxo.data["global"].data
    del tensors[next(iter(tensors))]


def _count(dxo: DXO) -> None:
    dxo.meta["images"] = dxo.meta["images"] | {"train": 10**9}


def _round(dxo: DXO) -> None:
    dxo.meta["round"] -= 1


# What an answer becomes, and a piece of the reason for which the server must refuse it.
RUBBISH = {
    "nan": (_nan, "holds NaN"),
    "shape": (_shape, "has shape"),
    "key": (_key, "is missing"),
    "count": (_count, "claims 1000000000"),
    "round": (_round, "answer of round"),
}


class ChaosFilter(Filter):
    """Loses or damages answers of the site that it runs at.

    A lost answer is an exception: FLARE sends an error in its place. The site has trained by then, so its Adam has
    gone on where the server's model has not.

    Args:
        faults: site -> round, as text since it comes as JSON -> `LOST` or a name of `RUBBISH`.
    """

    def __init__(self, faults: dict[str, dict[str, str]]):
        super().__init__()
        self._faults = faults

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable  # its trainer was killed: there is no answer to damage
        dxo = from_shareable(shareable)
        number = str(dxo.meta["round"])
        fault = self._faults.get(fl_ctx.get_identity_name(), {}).get(number)
        if fault is None:
            return shareable
        self.log_info(fl_ctx, f"chaos: {fault} in round {number}")
        if fault == LOST:
            raise RuntimeError(f"chaos: the answer of round {number} is lost")
        RUBBISH[fault][0](dxo)
        return dxo.update_shareable(shareable)
