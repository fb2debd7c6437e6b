"""Makes one site of a real simulator hostile: Python imports this in every process that has its folder on its path.

`FEDSM_HOSTILE` is a JSON mapping: round -> what site-2 sends in it, `tensor:BYTES`, `arrays:BYTES` or `meta:BYTES`.
"""

import json
import os
import sys

if any("flare_simulator" in word for word in sys.orig_argv):  # the workers are its forks
    import numpy as np
    import torch

    from fedsm.flare import exchange
    from fedsm.flare.executor import FedSMExecutor

    plan = json.loads(os.environ["FEDSM_HOSTILE"])
    work = FedSMExecutor.execute

    def spoil(result, what: str) -> None:
        kind, _, size = what.partition(":")
        content = result["DXO"]
        entries = next(iter(content["data"].values())).data
        name = next(iter(entries))
        if kind == "tensor":
            entries[name] = torch.zeros(int(size) // 4)
        elif kind == "arrays":
            for i in range(64):
                entries[f"junk{i}"] = np.zeros(int(size) // 4 // 64, np.float32)
        elif kind == "meta":
            content["meta"]["junk"] = "j" * int(size)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        number = exchange.unpack(shareable)[0]["round"]
        result = work(self, task_name, shareable, fl_ctx, abort_signal)
        if fl_ctx.get_identity_name() == "site-2" and task_name == exchange.TRAIN and str(number) in plan:
            spoil(result, plan[str(number)])
        return result

    FedSMExecutor.execute = execute
