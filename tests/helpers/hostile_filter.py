"""A filter that a hostile hospital puts into its own kit. It does what the file `hostile.json` in the kit says.

    {"name": "site-1"}                   its answers say that they come from site 1
    {"count": 1000000, "factor": -1.0}   it claims so many images, and its updates are multiplied

Copied into `local/custom/` of the kit; it knows nothing of this project's tests.
"""

import json
from pathlib import Path

from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReservedKey, ReturnCode

PLAN = Path(__file__).parents[2] / "hostile.json"


class HostileFilter(Filter):
    def process(self, shareable, fl_ctx):
        plan = json.loads(PLAN.read_text()) if PLAN.is_file() else {}
        if "name" in plan:
            fl_ctx.put(ReservedKey.IDENTITY_NAME, plan["name"], private=False, sticky=False)
        if "count" not in plan or shareable.get_return_code() != ReturnCode.OK:
            return shareable
        dxo = from_shareable(shareable)
        dxo.meta["images"] = dxo.meta["images"] | {"train": plan["count"]}
        for part in dxo.data.values():
            scale = {key: plan["count"] / part.data["n"].item() for key in part.data} if "n" in part.data else {}
            part.data = {k: v * scale.get(k, plan["factor"]) for k, v in part.data.items()}
        return dxo.update_shareable(shareable)
