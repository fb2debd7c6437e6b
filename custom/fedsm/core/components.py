"""The classes that a job's configuration names: `class_allow_list` must hold these and no others of ours.

Not `fedsm.` as a whole: FLARE calls the object at a path with the configuration's arguments. A job without any code
could then call each function of the package, and what its modules import, such as `save_file`. The paths of version 0.1
are listed so that an old job folder gets an error with the remedy: nothing can be built from them.
"""

from fedsm.core.moved import MOVED

EXECUTOR = "fedsm.flare.executor.FedSMExecutor"
# Of a kit, not of a job: see there.
JOB_ID_GUARD = {"id": "fedsm_job_ids", "path": "fedsm.flare.compat.job_ids.JobIdGuard", "args": {}}
SITE_CLASSES = (EXECUTOR, *(path for path in MOVED if path.startswith("fedsm.client.")))
SERVER_CLASSES = (
    "fedsm.flare.aggregator.SoftPullAggregator",
    "fedsm.flare.compat.mlflow_curves.MLflowCurves",
    "fedsm.flare.compat.wandb_curves.WandBCurves",
    "fedsm.flare.controller.FedSMController",
    "fedsm.flare.evaluation.EvaluationController",
    "fedsm.flare.forget_controller.ForgetController",
    *(path for path in MOVED if path.startswith("fedsm.server.")),
)
# Of FLARE's own list, and not in our kits: a job without code has them write to any path. Ours above stand for them.
NOT_ALLOWED = (
    "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver",
    "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver",
)
