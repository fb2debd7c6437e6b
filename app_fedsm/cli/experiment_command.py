"""`fedsm experiment`: the options; the work is in `app_fedsm.experiments`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options
from app_fedsm.cli.parser import complete_files
from app_fedsm.config.names import available

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  fedsm experiment main --task nuclei --data ROOT --rounds 60 --size 96 --batch-size 4 --seeds 0 --out runs/main
  fedsm experiment my_grid.yaml --data ROOT --dry-run
"""


def _experiment(args: argparse.Namespace) -> int:
    from app_fedsm.experiments.experiment import command

    return command(args)


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "experiment", help="a grid of runs and its table",
        epilog=_EXAMPLE, description="Runs a grid of methods, seeds and settings, and writes table.md and table.csv."
        " Options of jobs win over the file's `base`. The same command goes on after Ctrl-C.",
    )  # fmt: skip
    add = parser.add_argument
    complete_files(add("file", metavar="FILE", help=f"a YAML file, or one of {', '.join(available('experiments'))}"))
    add("--data", type=Path, metavar="ROOT", help="folder with one sub-folder per site")
    add("--out", type=Path, metavar="DIR", help="the experiment's folder (default: runs/<name>)")
    add("--dry-run", action="store_true", help="say what would be run, and run nothing")
    add("--seeds", type=int, nargs="+", metavar="S", help="each row is run with every seed")
    add("--lr", type=float, nargs="+", metavar="LR", help="of several, the best on validation images is taken")
    add("--row", nargs=2, action="append", metavar=("NAME", "KEY=VALUE"), help="an option of one row of the file")
    add("--parallel", type=int, metavar="N", help="runs at the same time (default: 1)")
    add("--threads", type=int, metavar="T", help="sites of a run that run at the same time (default: all)")
    add_job_options(parser, without=("method", "seed", "lr"))
    parser.set_defaults(do=_experiment)
