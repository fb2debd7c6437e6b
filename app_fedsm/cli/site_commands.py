"""`fedsm site`: is this hospital ready to join?"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options, settings_of
from app_fedsm.cli.output import Result, add_format

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_NOT_HERE = (  # options of a job that change nothing for a site's machine
    "rounds", "local_epochs", "lr", "selector_lr", "lam", "blend", "seed", "min_sites", "round_timeout",
)  # fmt: skip


def _site_check(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.check_documents import site_check
    from fedsm.nets import try_networks
    from fedsm.preflight.footprint import SITES
    from fedsm.preflight.kit import load_kit
    from fedsm.preflight.line import format_lines
    from fedsm.preflight.site import check_site
    from fedsm.preflight.versions import load_versions

    kit = load_kit(args.kit)
    expected = load_versions(args.expect) if args.expect else None
    settings = None
    if args.task is not None:
        settings = settings_of(args)
        try_networks(settings, SITES)
    lines = check_site(kit, settings, expected)
    print(f"site {kit.site}, kit {kit.root}")
    if settings:
        print(f"task {args.task}, method {settings.method}, {settings.size} px, batch of {settings.batch_size}")
    print(format_lines(lines, shutil.get_terminal_size().columns if sys.stdout.isatty() else 0))
    data = site_check(kit.site, kit.root, args.task, lines)
    return Result(int(data.level == "FAIL"), data)


def _site_versions(args: argparse.Namespace) -> int:
    from fedsm.preflight.versions import versions

    print(json.dumps(versions(), indent=1))
    return 0


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm`'s."""
    site = commands.add_parser(
        "site", help="a hospital before it joins",
        epilog="example:\n  fedsm site check /opt/fedsm/site-1 --task retinal\n",
    ).add_commands()  # fmt: skip
    check = site.add_parser(
        "check", help="PASS, WARN or FAIL for this machine and its kit, with remedies",
        epilog="example:\n  fedsm site check /opt/fedsm/site-1 --task retinal --expect server_versions.json\n",
        description="Looks at packages, certificate, server, fedsm_site.yaml, data, memory and disk before a site"
        " joins. It changes nothing, here or at the server; exit code 1 when a line says FAIL.",
    )  # fmt: skip
    check.add_argument(
        "kit", type=Path, metavar="KIT", help="the site's startup kit: a folder with startup/ and local/"
    )
    check.add_argument(
        "--expect", type=Path, metavar="FILE", help="the server's versions: what `fedsm site versions` printed there"
    )
    add_job_options(check, without=_NOT_HERE)
    add_format(check)
    check.set_defaults(do=_site_check)
    versions = site.add_parser(
        "versions", help="print the versions for --expect, at the server",
        epilog="example:\n  fedsm site versions > server_versions.json\n",
        description="Prints Python's and the packages' versions as JSON, for the sites' `fedsm site check --expect`.",
    )  # fmt: skip
    versions.set_defaults(do=_site_versions)
