"""The command `fedsm`.

Exit codes: 0 done, 1 a run failed or some files, sites or checks did, 2 bad input (nothing was started), 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_fedsm.cli.terminal import clean_output
from fedsm.core.errors import UserError
from fedsm.core.private_files import private_files
from fedsm.core.text import printable

if TYPE_CHECKING:
    from fedsm.core.settings import JobSettings

_EXAMPLE = """example:
  fedsm data synth demo_data
  fedsm run --task retinal --data demo_data --rounds 3 --size 64 --out runs/first
  fedsm predict runs/first/super_model demo_data/site-1/images -o predictions
"""
_JOB_EXAMPLE = "example:\n  fedsm job export --task retinal --rounds 20 --out jobs\n"
_RUN_EXAMPLE = """example:
  fedsm data synth demo_data
  fedsm run --task retinal --data demo_data --rounds 20 --size 64 --out runs/first
"""


def add_job_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> None:
    """Adds the options of a job but some; their names are in the arguments' `job_options`."""
    from app_fedsm.config.build import PERSONAL, SELECTORS, available, task_help
    from fedsm.core.settings import NORM_CHECKS

    options: dict[str, dict[str, Any]] = {
        "task": {"help": task_help()},
        "method": {"help": f"how it is trained: {', '.join(available('methods'))} (default: fedsm)"},
        "rounds": {"type": int, "metavar": "N", "help": "federated rounds (default: 150)"},
        "local_epochs": {"type": int, "metavar": "E", "help": "passes over a site's images each round (default: 1)"},
        "size": {"type": int, "metavar": "PX", "help": "images are resized to PX x PX (default: 256)"},
        "batch_size": {"type": int, "metavar": "B", "help": "images a step (default: 8)"},
        "lr": {"type": float, "help": "Adam's learning rate of the U-Nets (default: 1e-3)"},
        "selector_lr": {"type": float, "metavar": "LR", "help": "the same for a trained selector (default: 1e-4)"},
        "lam": {"type": float, "metavar": "L", "help": "SoftPull's own share, in [1/K, 1] (default: the task's)"},
        "selector": {"metavar": "KIND", "help": f"{', '.join(SELECTORS)} (default: the method's)"},
        "personal": {"metavar": "KIND", "help": f"{', '.join(PERSONAL)} (default: the method's)"},
        "blend": {
            "action": "store_true",
            "default": None,
            "help": "also score soft selection: the two most probable models share an image",
        },
        "seed": {"type": int, "metavar": "S", "help": "fixes weights, splits and order of batches (default: 0)"},
        "min_sites": {"type": int, "metavar": "N", "help": "good answers that a round needs (default: 2)"},
        "round_timeout": {"type": int, "metavar": "S", "help": "seconds until a round is closed (default: 3600)"},
        "round_retries": {
            "type": int,
            "metavar": "N",
            "help": "how often a round with too few good answers is tried again (default: 2)",
        },
        "norm_check": {
            "choices": NORM_CHECKS,
            "help": "what is done about an update whose norm is far from the others' (default: warn)",
        },
    }
    added = [name for name in options if name not in without]
    for name in added:
        parser.add_argument("--" + name.replace("_", "-"), **options[name])
    parser.add_argument(
        "--set", action="append", metavar="KEY=VALUE", dest="overrides",
        help="any other setting, e.g. task.unet.channels=[8,16,32] (may be repeated)",
    )  # fmt: skip
    parser.set_defaults(job_options=[*added, "overrides"])


def settings_of(args: argparse.Namespace, method: str | None = None) -> JobSettings:
    """The settings that the options of a job come to; `method`: instead of the one that was asked for."""
    from app_fedsm.config.build import build_settings

    given = {name: getattr(args, name) for name in args.job_options}
    if given["task"] is None:
        raise UserError("--task is missing; see `fedsm run --help`")
    given["method"] = method or given.get("method") or "fedsm"
    return build_settings(**given)


def _run(args: argparse.Namespace) -> int:
    from app_fedsm.runs import run_folder, simulate
    from fedsm.core.settings import JobSettings
    from fedsm.data.findings import warnings_of

    out = args.out
    if args.from_round is not None and not args.resume:
        raise UserError("--from-round goes with --resume")
    if args.resume:
        fixed = [n for n in args.job_options if n != "rounds" and getattr(args, n) is not None]
        if fixed:
            option = "--set" if fixed[0] == "overrides" else "--" + fixed[0].replace("_", "-")
            raise UserError(
                f"--resume goes on with the run's own settings: leave out {option} (--rounds and --data may change)"
            )
        earlier = run_folder.load_run(out)
        changes = {} if args.rounds is None else {"rounds": args.rounds}
        settings, data = JobSettings.from_dict(earlier["settings"] | changes), args.data or Path(earlier["data"])
        args.threads = earlier["threads"] if args.threads is None else args.threads
        if args.cache is None and earlier["cache"]:
            args.cache = Path(earlier["cache"])
    else:
        if args.data is None:
            raise UserError("--data is missing: a folder with one sub-folder a site; see `fedsm run --help`")
        settings, data = settings_of(args), args.data
    known = simulate.known_sites(out) if args.resume else []
    reports = simulate.check_data(data, settings, args.task or settings.task.name, known)
    sites = [report.site for report in reports]
    threads = len(sites) if args.threads is None else args.threads
    if not 1 <= threads <= len(sites):
        raise UserError(f"--threads must be between 1 and the number of sites ({len(sites)}), got {threads}")
    with simulate.holding(out):
        run_folder.prepare_folder(out, args.resume, args.force, args.from_round)
        for line in warnings_of(reports):
            print(line, file=sys.stderr)
        return _simulate(settings, data, sites, threads, args)


def _simulate(settings: JobSettings, data: Path, sites: list[str], threads: int, args: argparse.Namespace) -> int:
    """Runs the job, and says how it ended and how to go on."""
    from app_fedsm.runs import run_folder, simulate

    out = args.out
    try:
        with simulate.stop_signals():
            results = simulate.simulate(settings, data, sites, out, threads, args.resume, args.cache)
    except KeyboardInterrupt:
        print(
            f"\nstopped; {run_folder.last_checkpoint(out)}\ngo on with: fedsm run --resume --out {out}", file=sys.stderr
        )
        return 130
    except simulate.SimulationFailed as e:
        print(f"fedsm: the run failed: {printable(e)}\n{run_folder.last_checkpoint(out)}", file=sys.stderr)
        print(f"go on with: fedsm resume {out}", file=sys.stderr)
        return 1
    print(run_folder.in_words(out, results))
    return 0


def _job_export(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    from app_fedsm.cli.federation_commands import parse_gpus
    from app_fedsm.jobs import job_name
    from app_fedsm.recipes import FedSMRecipe
    from fedsm.nets import try_networks

    name = args.name or job_name(settings)
    try_networks(settings, settings.min_sites)
    try:
        FedSMRecipe(settings, name, args.resume_from, args.byoc, parse_gpus(args.gpus or [])).export(str(args.out))
    except (ValueError, RuntimeError) as e:  # FLARE's words on names and on folders that are not ours
        raise UserError(str(e).splitlines()[0]) from e
    print(args.out / name)
    return 0


def _workspace(args: argparse.Namespace) -> int:
    from app_fedsm.runs.workspace import prepare_workspace
    from fedsm.data.site_folder import list_sites

    sites = list_sites(args.data)
    prepare_workspace(args.workspace, args.data, len(sites))
    names = "" if sites == [f"site-{i + 1}" for i in range(len(sites))] else f" -c {','.join(sites)}"
    print(f"nvflare simulator JOB -w {args.workspace} -n {len(sites)} -t {len(sites)}{names}")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    from app_fedsm.cli import (
        completion,
        data_commands,
        evaluate,
        export_commands,
        federation_commands,
        forget,
        predict,
        report,
        site_commands,
    )
    from app_fedsm.experiments import experiment
    from app_fedsm.provisioning import provision

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("fedsm", description=__doc__, formatter_class=raw, epilog=_EXAMPLE)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser(
        "run", help="run a job in FLARE's simulator", formatter_class=raw, epilog=_RUN_EXAMPLE,
        description="Trains a super model on a folder of sites, in FLARE's simulator on this machine.",
    )  # fmt: skip
    run.add_argument("--data", type=Path, metavar="ROOT", help="folder with one sub-folder a site")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="the run's folder")
    run.add_argument("--threads", type=int, metavar="T", help="sites that run at the same time (default: all)")
    run.add_argument("--cache", type=Path, metavar="DIR", help="where decoded images are kept (default: in --out)")
    run.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    run.add_argument("--from-round", type=int, metavar="N", help=federation_commands.FROM_ROUND)
    run.add_argument("--force", action="store_true", help="replace the run that --out holds")
    add_job_options(run)
    run.set_defaults(do=_run)

    job = commands.add_parser("job", help="job folders for `nvflare`", formatter_class=raw, epilog=_JOB_EXAMPLE)
    export = job.add_subparsers(dest="verb", required=True).add_parser(
        "export", help="write a job folder", formatter_class=raw, epilog=_JOB_EXAMPLE,
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
    federation_commands.add_gpus(export)
    add_job_options(export)
    export.set_defaults(do=_job_export)

    workspace = commands.add_parser(
        "workspace", help="make a workspace ready for plain `nvflare simulator`", formatter_class=raw,
        epilog="example:\n  fedsm workspace ws --data data\n  nvflare simulator jobs/fedsm_retinal -w ws -n 6 -t 6\n",
        description="Tells a simulator workspace where the data are and that our classes may run; prints the command.",
    )  # fmt: skip
    workspace.add_argument("workspace", type=Path, metavar="WS", help="the simulator's workspace (its -w)")
    workspace.add_argument("--data", type=Path, required=True, metavar="ROOT", help="folder with one sub-folder a site")
    workspace.set_defaults(do=_workspace)

    experiment.add_parser(commands, add_job_options)
    forget.add_parser(commands)
    data_commands.add_parsers(commands)
    federation_commands.add_parsers(commands, add_job_options)
    provision.add_parser(commands)
    site_commands.add_parser(commands, add_job_options)
    predict.add_parser(commands)
    export_commands.add_parser(commands)
    evaluate.add_parser(commands)
    report.add_parser(commands)
    completion.add_parser(commands, parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    with private_files(), clean_output():
        return _main(argv)


def _main(argv: list[str] | None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return args.do(args)
    except UserError as e:
        print(f"fedsm: error: {printable(e)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `fedsm ... | head`
        sys.stderr.close()
        return 0
    except OSError as e:
        print(f"fedsm: error: {printable(e.filename or '')}: {printable(e.strerror or e)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
