"""`fedsm job` and `fedsm workspace`: what FLARE's own commands take."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli.job_options import add_job_options, add_tracking, settings_of
from app_fedsm.cli.submission import add_gpus, parse_gpus
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser

_JOB_EXAMPLE = "example:\n  fedsm job export --task retinal --rounds 20 --out jobs\n"


def _export(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    from app_fedsm.jobs import job_name
    from app_fedsm.recipes import FedSMRecipe
    from app_fedsm.tracking import choose_tracking
    from fedsm.nets import try_networks

    name = args.name or job_name(settings)
    tracking = choose_tracking(args.track, args.track_uri)
    try_networks(settings, settings.min_sites)
    try:
        resources = parse_gpus(args.gpus or [])
        recipe = FedSMRecipe(
            name, settings=settings, resume_from=args.resume_from, byoc=args.byoc, resources=resources,
            track=tracking,
        )  # fmt: skip
        recipe.export(str(args.out))
    except (ValueError, RuntimeError) as e:  # FLARE's words on names and on folders that are not ours
        raise UserError(str(e).splitlines()[0]) from e
    print(args.out / name)
    return 0


def _workspace(args: argparse.Namespace) -> int:
    from app_fedsm.runs.workspace import is_plain, prepare_workspace
    from fedsm.data.site_folder import list_sites

    if not is_plain(args.workspace.resolve()):
        raise UserError(
            f"{args.workspace}: `nvflare simulator` cannot work in a path with blanks", remedy="choose another"
        )
    sites = list_sites(args.data)
    prepare_workspace(args.workspace, args.data, len(sites))
    names = [] if sites == [f"site-{i + 1}" for i in range(len(sites))] else ["-c", ",".join(sites)]
    command = ["nvflare", "simulator", "JOB", "-w", str(args.workspace), "-n", str(len(sites)), "-t", str(len(sites))]
    print(shlex.join([*command, *names]))
    return 0


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm`'s."""
    job = commands.add_parser("job", help="job folders for `nvflare`", epilog=_JOB_EXAMPLE)
    export = job.add_commands().add_parser(
        "export", help="write a job folder", epilog=_JOB_EXAMPLE,
        description="Writes the folder that `nvflare simulator` and `nvflare job submit -j` take.",
    )  # fmt: skip
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the job folder is put")
    export.add_argument("--name", help="the job's name (default: <method>_<task>)")
    export.add_argument(
        "--resume-from",
        default="",
        metavar="DIR",
        help="what to go on from: a checkpoints folder on the server, or job:ID",
    )
    export.add_argument("--byoc", action="store_true", help="carry the code inside the job")
    add_gpus(export)
    add_tracking(export)
    add_job_options(export)
    export.set_defaults(do=_export)

    workspace = commands.add_parser(
        "workspace", help="make a workspace ready for plain `nvflare simulator`",
        epilog="example:\n  fedsm workspace ws --data data\n  nvflare simulator jobs/fedsm_retinal -w ws -n 6 -t 6\n",
        description="Writes to a simulator workspace where the data are and that our classes may run; prints the"
        " command. FLARE 2.9 calls `nvflare simulator` deprecated; it works.",
    )  # fmt: skip
    workspace.add_argument("workspace", type=Path, metavar="WS", help="the simulator's workspace (its -w)")
    workspace.add_argument(
        "--data", type=Path, required=True, metavar="ROOT", help="folder with one sub-folder per site"
    )
    workspace.set_defaults(do=_workspace)
