"""Classes that version 0.2 moved: a job folder of version 0.1 gets an error with the remedy, instead of FLARE's own.

FLARE builds a job's components by the class paths in its folder. Importing the package of an old path registers modules
whose classes only raise an error with the remedy.
"""

from __future__ import annotations

import sys
from types import ModuleType

MOVED = {
    "fedsm.client.executor.FedSMExecutor": "fedsm.flare.executor.FedSMExecutor",
    "fedsm.server.aggregator.SoftPullAggregator": "fedsm.flare.aggregator.SoftPullAggregator",
    "fedsm.server.controller.FedSMController": "fedsm.flare.controller.FedSMController",
    "fedsm.server.evaluation.EvaluationController": "fedsm.flare.evaluation.EvaluationController",
    "fedsm.server.forget_controller.ForgetController": "fedsm.flare.forget_controller.ForgetController",
}


def refuse_old_classes(package: str) -> None:
    """Registers the old modules of a package; called when that package is imported."""
    for path in MOVED:
        module, _, name = path.rpartition(".")
        if module.rpartition(".")[0] == package and module not in sys.modules:
            old = ModuleType(module, "Only raises errors: see `fedsm.core.moved`.")
            setattr(old, name, type(name, (), {"__init__": _refuse, "__module__": module}))
            sys.modules[module] = old


def _refuse(self: object, *args: object, **kwargs: object) -> None:
    old = f"{type(self).__module__}.{type(self).__name__}"
    raise RuntimeError(
        f"this job folder was exported by fedsm 0.1: {old} is {MOVED[old]} now; export it anew with `fedsm job export`"
    )
