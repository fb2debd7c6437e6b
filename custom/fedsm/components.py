"""The classes that a job's configuration names: what `class_allow_list` must hold, and all that it may hold of ours.

Not `fedsm.` as a whole: FLARE calls whatever stands at the path with the configuration's arguments, so that a job
without any code could call each function of the package, and what the modules import, `save_file` for one.
"""

EXECUTOR = "fedsm.client.executor.FedSMExecutor"
SITE_CLASSES = (EXECUTOR,)
SERVER_CLASSES = (
    "fedsm.server.aggregator.SoftPullAggregator",
    "fedsm.server.controller.FedSMController",
    "fedsm.server.evaluation.EvaluationController",
    "fedsm.server.forget_controller.ForgetController",
)
