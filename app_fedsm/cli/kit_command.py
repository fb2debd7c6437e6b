"""`fedsm kit`: a startup kit that FLARE alone made."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_EXAMPLE = """example:
  nvflare package site-1.signed.zip --request-dir site-1 --fingerprint SHA256:...
  fedsm kit prepare workspace/my_project/prod_00/site-1
  fedsm kit prepare workspace/my_project/prod_00/fl.example.org --storage /var/lib/fedsm
"""
_NEXT = {
    "site": "write `data:` to local/fedsm_site.yaml, then `fedsm site check KIT --task TASK`, then startup/start.sh",
    "server": "startup/start.sh",
    "relay": "startup/start.sh, before the sites behind it",
    "user": "`fedsm status --kit KIT`",
}


def _prepare(args: argparse.Namespace) -> int:
    from app_fedsm.provisioning.prepare import prepare_kit

    done = prepare_kit(args.kit, args.storage, args.byoc)
    print(f"{args.kit} is a {done.kind}'s kit, ready for FedSM jobs; only this account can read it")
    if done.kept:
        print(f"as they were: {', '.join(f'local/{name}' for name in done.kept)}")
    if done.storage:
        print(f"jobs and results are kept in {done.storage}")
    print(f"next: {_NEXT[done.kind].replace('KIT', shlex.quote(str(args.kit)))}")
    for problem in done.problems:
        print(f"fedsm: {problem}", file=sys.stderr)
    return int(bool(done.problems))


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the command to `fedsm`'s."""
    kit = commands.add_parser("kit", help="startup kits that FLARE alone made", epilog=_EXAMPLE)
    prepare = kit.add_commands().add_parser(
        "prepare", help="make a kit of `nvflare package` or `nvflare provision` ready", epilog=_EXAMPLE,
        description="Adds to a kit what `fedsm provision` adds to its own: the classes of our jobs, fedsm_site.yaml,"
        " time limits, storage, and a umask; and closes it to other accounts. Call it where the kit is used: no private"
        " key leaves its owner. Files that the owner has written stay, so it can be called again.",
    )  # fmt: skip
    prepare.add_argument("kit", type=Path, metavar="KIT", help="the kit of a server, site, relay or user")
    prepare.add_argument(
        "--storage", type=Path, metavar="DIR", help="of a server: where jobs and results are kept (default: in the kit)"
    )
    prepare.add_argument("--byoc", action="store_true", help="of a server or site: jobs may bring their code")
    prepare.set_defaults(do=_prepare)
