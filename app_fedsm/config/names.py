"""Names to choose from and defaults, as help texts show them: plain values, so that `fedsm --help` imports no torch.

The settings and `fedsm.tracks.KINDS` are authoritative; a test checks that these lists agree with them.
"""

from __future__ import annotations

from pathlib import Path

CENTRALIZED = "centralized"  # a method of `fedsm run` without a federation: all images in one place
SELECTORS = ("ensemble", "extra", "fedavg", "gradient", "statistics")
PERSONAL = ("apfl", "ditto", "fedbn", "fedrep", "finetune", "per-fedavg", "pfedme", "softpull", "softpull_at_site")
NORM_CHECKS = ("off", "warn", "clip", "refuse")
TRACKING = (TENSORBOARD, MLFLOW, WANDB, NO_TRACKING) = ("tensorboard", "mlflow", "wandb", "none")
DEFAULTS = {
    "method": "fedsm", "rounds": 150, "local_epochs": 1, "size": 256, "batch_size": 8, "lr": 1e-2, "selector_lr": 1e-4,
    "seed": 0, "min_sites": 2, "round_timeout": 3600, "round_retries": 2, "norm_check": "clip",
}  # fmt: skip


def available(what: str) -> list[str]:
    """Names of the `tasks`, `methods`, `presets` or `experiments` that have a YAML file here."""
    return sorted(path.stem for path in Path(__file__).with_name(what).glob("*.yaml"))


def task_help() -> str:
    """What `--task` takes."""
    return f"what is segmented: {', '.join(available('tasks'))}, or a YAML file of your own"
