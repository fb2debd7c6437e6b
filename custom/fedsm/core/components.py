"""The classes that a job's configuration names: what `class_allow_list` must hold, and all that it may hold of ours.

Not `fedsm.` as a whole: FLARE calls whatever stands at the path with the configuration's arguments, so that a job
without any code could call each function of the package, and what the modules import, `save_file` for one. The paths of
version 0.1 are there so that an old job folder is told what to do: nothing can be built at them.
"""

from fedsm.core.moved import MOVED

EXECUTOR = "fedsm.flare.executor.FedSMExecutor"
SITE_CLASSES = (EXECUTOR, *(path for path in MOVED if path.startswith("fedsm.client.")))
SERVER_CLASSES = (
    "fedsm.flare.aggregator.SoftPullAggregator",
    "fedsm.flare.controller.FedSMController",
    "fedsm.flare.evaluation.EvaluationController",
    "fedsm.flare.forget_controller.ForgetController",
    *(path for path in MOVED if path.startswith("fedsm.server.")),
)
