"""`fedsm clean`: makes a finished run small."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser


def _clean(args: argparse.Namespace) -> int:
    from app_fedsm.runs.run_folder import is_federation, lock_folder

    is_federation(args.run)  # says what is wrong with a folder that is no run
    with lock_folder(args.run, "run"):
        drop(args.run)
    return 0


def drop(out: Path) -> None:
    """Drops what only a resume needs of a finished run, and says how much that was."""
    from app_fedsm.runs.hints import megabytes
    from app_fedsm.runs.slim import make_slim, total_size

    freed = make_slim(out)
    print(f"dropped what only a resume needs: {megabytes(freed)}; {out} now has {megabytes(total_size([out]))}")


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "clean", help="drop what only a resume needs from a finished run",
        epilog="example:\n  fedsm clean runs/first\n",
        description="Drops checkpoints, the sites' optimizers, decoded images and FLARE's workspace from a finished"
        " run's folder, and says how much that freed. predict, evaluate, export and report still work; a run in the"
        " simulator can no longer be resumed. `fedsm run --slim` does the same at the end of a run.",
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.set_defaults(do=_clean)
