"""`fedsm provision`: the options; the work is in `app_fedsm.provisioning`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.core.text import printable

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  fedsm provision poc_workspace/project_localhost.yml -o kits

The second call on the same folder makes new kits (prod_01, ...) beside the first: participants that exist keep their
certificates and what stands in their kit's local/, so that only the kits of new participants need to be sent.
"""


def _provision(args: argparse.Namespace) -> int:
    from app_fedsm.provisioning.project_check import WrongProject
    from app_fedsm.provisioning.provision import describe, provision

    try:
        kits = provision(args.project, args.out)
    except WrongProject as e:
        for problem in e.problems:
            print(f"FAIL {printable(problem)}", file=sys.stderr)
        raise
    for line in kits.project.warnings:
        print(f"WARN {line}", file=sys.stderr)
    print(describe(kits))
    return 0


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    parser = commands.add_parser(
        "provision", help="make startup kits for server, sites and users", epilog=_EXAMPLE,
        description="Checks a project.yml, runs `nvflare provision`, fills each kit's local/ folder, and says to whom"
        " each kit goes and what is to be edited there.",
    )  # fmt: skip
    parser.add_argument("project", type=Path, metavar="PROJECT.yml", help="server, sites and users of the consortium")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("kits"), metavar="DIR", help="where the kits go (default: kits)"
    )
    parser.set_defaults(do=_provision)
