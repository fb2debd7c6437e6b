"""The options of a job, which several commands share, and the settings made from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from app_fedsm.config.names import (
    CENTRALIZED,
    DEFAULTS,
    NORM_CHECKS,
    PERSONAL,
    SELECTORS,
    TENSORBOARD,
    TRACKING,
    available,
    task_help,
)
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from fedsm.core.settings import JobSettings


def _options() -> dict[str, dict[str, Any]]:
    """Name -> its arguments for argparse. The help of an option names its default from the settings."""
    options: dict[str, dict[str, Any]] = {
        "task": {"help": task_help()},
        "method": {"help": f"how it is trained: {', '.join(available('methods'))}"},
        "preset": {
            "metavar": "NAME",
            "help": f"a named set of settings: {', '.join(available('presets'))}; other options win over it (default:"
            " none)",
        },
        "rounds": {"type": int, "metavar": "N", "help": "federated rounds"},
        "local_epochs": {"type": int, "metavar": "E", "help": "passes over a site's images in each round"},
        "size": {"type": int, "metavar": "PX", "help": "images are resized to PX x PX"},
        "batch_size": {"type": int, "metavar": "B", "help": "images per step"},
        "lr": {"type": float, "help": "Adam's learning rate of the U-Nets"},
        "selector_lr": {"type": float, "metavar": "LR", "help": "the same for a trained selector"},
        "lam": {"type": float, "metavar": "L", "help": "SoftPull's own share, in [1/K, 1] (default: the task's)"},
        "selector": {
            "metavar": "KIND",
            "help": f"{', '.join(SELECTORS)} (default: the method's, for fedsm statistics; the jobs of the paper's"
            " tasks in jobs/ use the paper's, gradient)",
        },
        "personal": {"metavar": "KIND", "help": f"{', '.join(PERSONAL)} (default: the method's)"},
        "blend": {
            "action": "store_true",
            "default": None,
            "help": "also score soft selection: the two most probable models share an image",
        },
        "seed": {"type": int, "metavar": "S", "help": "fixes weights, splits and order of batches"},
        "min_sites": {"type": int, "metavar": "N", "help": "good answers that a round needs"},
        "round_timeout": {"type": int, "metavar": "S", "help": "seconds until a round is closed"},
        "round_retries": {
            "type": int,
            "metavar": "N",
            "help": "how often a round with too few good answers is tried again",
        },
        "norm_check": {
            "choices": NORM_CHECKS,
            "help": "what is done about an update whose norm is far from the others'",
        },
    }
    for name, value in DEFAULTS.items():
        options[name]["help"] += f" (default: {value})"
    return options


def add_job_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = (), centralized: bool = False) -> None:
    """Adds the options of a job; their names are in the arguments' `job_options`.

    Args:
        parser: where to.
        without: options that the command does not have.
        centralized: the command also trains without a federation.
    """
    options = _options()
    if centralized:
        options["method"]["help"] += f"; or {CENTRALIZED}: all images in one place, the upper bound for a federation"
    added = [name for name in options if name not in without]
    for name in added:
        parser.add_argument("--" + name.replace("_", "-"), **options[name])
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", dest="overrides",
        help="any other setting, e.g. task.unet.channels=[8,16,32] (may be repeated)",
    )  # fmt: skip
    parser.set_defaults(job_options=[*added, "overrides"])


def add_tracking(parser: argparse.ArgumentParser) -> None:
    """Adds where the curves go; `app_fedsm.tracking.choose_tracking` takes what was given."""
    parser.add_argument(
        "--track", choices=TRACKING, help=f"where the curves of loss and validation go (default: {TENSORBOARD})"
    )
    parser.add_argument(
        "--track-uri", metavar="URL",
        help="an MLflow server, for --track mlflow (default: MLFLOW_TRACKING_URI, or a database in the run's folder)",
    )  # fmt: skip


def option_name(name: str) -> str:
    """How an option of a job is written: `min_sites` is --min-sites."""
    return "--set" if name == "overrides" else "--" + name.replace("_", "-")


def settings_of(args: argparse.Namespace) -> JobSettings:
    """The settings of a federated job from its options.

    Raises:
        UserError: no task; a method that is no federated job; an invalid setting.
    """
    from app_fedsm.config.build import build_settings

    given = {name: getattr(args, name) for name in args.job_options}
    if given["task"] is None:
        raise UserError("--task is missing", remedy="see `fedsm run --help`")
    given["method"] = given.get("method") or DEFAULTS["method"]
    if given["method"] == CENTRALIZED:
        raise UserError(
            f"method {CENTRALIZED!r} trains on all images in one place and is no federated job",
            remedy=f"`fedsm run --method {CENTRALIZED}` runs it on this machine",
        )
    return build_settings(**given)
