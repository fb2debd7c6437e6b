"""The command `fedsm`.

Exit codes: 0 done, 1 a run failed, 2 bad input (nothing was started), 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedsm.errors import UserError

if TYPE_CHECKING:
    from fedsm.data.findings import SiteReport
    from fedsm.settings import TaskSettings

_RUN_EXAMPLE = """example:
  fedsm data synth demo_data
  fedsm run --task retinal --data demo_data --rounds 20 --size 64 --out runs/first
"""


_SHEETS = "fedsm_check"  # in the current folder: a hospital's data folder is not ours to write to


def _task_help() -> str:
    from app_fedsm.config import available

    return f"what is segmented: {', '.join(available('tasks'))}, or a YAML file of your own"


def add_job_options(parser: argparse.ArgumentParser) -> None:
    from app_fedsm.config import SELECTORS, available

    add = parser.add_argument
    add("--task", help=_task_help())
    add("--method", help=f"how it is trained: {', '.join(available('methods'))} (default: fedsm)")
    add("--rounds", type=int, metavar="N", help="federated rounds (default: 150)")
    add("--local-epochs", type=int, metavar="E", help="passes over a site's images each round (default: 1)")
    add("--size", type=int, metavar="PX", help="images are resized to PX x PX (default: 256)")
    add("--batch-size", type=int, metavar="B", help="images a step (default: 8)")
    add("--lr", type=float, help="Adam's learning rate of the U-Nets (default: 1e-3)")
    add("--selector-lr", type=float, metavar="LR", help="the same for a trained selector (default: 1e-4)")
    add("--lam", type=float, metavar="L", help="SoftPull's own share, in [1/K, 1] (default: the task's)")
    add("--selector", metavar="KIND", help=f"{', '.join(SELECTORS)} (default: the method's)")
    add("--seed", type=int, metavar="S", help="fixes weights, splits and order of batches (default: 0)")
    add("--min-sites", type=int, metavar="N", help="good answers that a round needs (default: 2)")
    add("--round-timeout", type=int, metavar="S", help="seconds until a round is closed (default: 3600)")
    add("--set", action="append", metavar="KEY=VALUE", dest="overrides",
        help="any other setting, e.g. task.unet.channels=[8,16,32] (may be repeated)")  # fmt: skip


_JOB_OPTIONS = (
    "task", "method", "rounds", "local_epochs", "size", "batch_size", "lr", "selector_lr", "lam", "selector", "seed",
    "min_sites", "round_timeout", "overrides",
)  # fmt: skip


def settings_of(args: argparse.Namespace):
    from app_fedsm.config import build_settings

    given = {name: getattr(args, name) for name in _JOB_OPTIONS}
    if given["task"] is None:
        raise UserError("--task is missing; see `fedsm run --help`")
    given["method"] = given["method"] or "fedsm"
    return build_settings(**given)


def _run(args: argparse.Namespace) -> int:
    from app_fedsm import simulate
    from fedsm.data.findings import warnings_of
    from fedsm.evaluation.tables import dice_table
    from fedsm.settings import JobSettings

    out = args.out
    if args.resume:
        fixed = [n for n in _JOB_OPTIONS if n != "rounds" and getattr(args, n) is not None]
        if fixed:
            option = "--set" if fixed[0] == "overrides" else "--" + fixed[0].replace("_", "-")
            raise UserError(
                f"--resume goes on with the run's own settings: leave out {option} (--rounds and --data may change)"
            )
        earlier = simulate.load_run(out)
        changes = {} if args.rounds is None else {"rounds": args.rounds}
        settings, data = JobSettings.from_dict(earlier["settings"] | changes), args.data or Path(earlier["data"])
        if args.threads is None:
            args.threads = earlier["threads"]
    else:
        if args.data is None:
            raise UserError("--data is missing: a folder with one sub-folder a site; see `fedsm run --help`")
        settings, data = settings_of(args), args.data
    reports = simulate.check_data(data, settings, args.task or settings.task.name)
    sites = [report.site for report in reports]
    threads = len(sites) if args.threads is None else args.threads
    if not 1 <= threads <= len(sites):
        raise UserError(f"--threads must be between 1 and the number of sites ({len(sites)}), got {threads}")
    simulate.prepare_folder(out, args.resume, args.force)
    for line in warnings_of(reports):
        print(line, file=sys.stderr)
    try:
        with simulate.stop_signals():
            results = simulate.simulate(settings, data, sites, out, threads, args.resume, args.cache)
    except KeyboardInterrupt:
        print(
            f"\nstopped; {simulate.last_checkpoint(out)}\ngo on with: fedsm run --resume --out {out}", file=sys.stderr
        )
        return 130
    except simulate.SimulationFailed as e:
        print(f"fedsm: the run failed: {e}\n{simulate.last_checkpoint(out)}", file=sys.stderr)
        return 1
    print(dice_table(results))
    print(f"\nresults: {out / 'results.json'}\nsuper model: {out / 'super_model'}")
    return 0


def _job_export(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    name = args.name or f"{settings.method.replace('-', '_')}_{settings.task.name}"
    from app_fedsm.recipe import FedSMRecipe

    try:
        FedSMRecipe(settings, name, args.resume_from, args.byoc).export(str(args.out))
    except (ValueError, RuntimeError) as e:  # FLARE's words on names and on folders that are not ours
        raise UserError(str(e).splitlines()[0]) from e
    print(args.out / name)
    return 0


def _workspace(args: argparse.Namespace) -> int:
    from app_fedsm.workspace import prepare_workspace
    from fedsm.data.site_folder import list_sites

    sites = list_sites(args.data)
    prepare_workspace(args.workspace, args.data, len(sites))
    names = "" if sites == [f"site-{i + 1}" for i in range(len(sites))] else f" -c {','.join(sites)}"
    print(f"nvflare simulator JOB -w {args.workspace} -n {len(sites)} -t {len(sites)}{names}")
    return 0


def _data_synth(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from fedsm.data.synthetic import write_sites

    for name, least in (("sites", 2), ("seed", 0), ("images", 1), ("size", 32)):
        if getattr(args, name) < least:
            raise UserError(f"--{name} must be at least {least}, got {getattr(args, name)}")
    if args.out.exists() and any(args.out.iterdir()) and not args.force:
        raise UserError(f"{args.out} is not empty; choose another folder or --force")
    with tqdm(desc="drawing", unit="image") as bar:
        names = write_sites(args.out, args.sites, args.seed, args.images, args.size, bar.update)
    print(f"{len(names)} sites in {args.out}: {', '.join(names)}")
    return 0


def _data_check(args: argparse.Namespace) -> int:
    from app_fedsm.config import build_settings
    from fedsm.data.check import check_with_bar
    from fedsm.data.findings import format_reports

    task = build_settings(args.task, "fedsm").task
    reports = check_with_bar(args.root, task)
    print(format_reports(reports))
    if not args.no_sheets:
        print(_write_sheets(args.root, reports, task, args.sheets))
    return int(any(report.level == "FAIL" for report in reports))


def _write_sheets(root: Path, reports: list[SiteReport], task: TaskSettings, asked: Path | None) -> str:
    """Contact sheets where they were asked for, or in the current folder; says where they are."""
    from tqdm import tqdm

    from fedsm.data.contact_sheet import write_contact_sheet

    out = asked or Path(_SHEETS)
    if asked is None and root.resolve() in (out.resolve(), *out.resolve().parents):
        return f"no contact sheets: {out.resolve()} lies among the data; name a folder with --sheets DIR"
    try:
        for report in tqdm(reports, desc="contact sheets", unit="site", leave=False, delay=1, disable=None):
            site = report.site
            folder = root / site if (root / site).is_dir() else root  # ROOT may be one site
            write_contact_sheet(folder, site, task, out / f"{site}.png", noted=report.noted)
    except UserError as e:
        if asked:
            raise
        return f"no contact sheets: {e}, or --no-sheets"  # the check itself is done: its exit code stands
    more = f" and {len(reports) - 1} more there" if reports[1:] else ""
    return f"contact sheets: {out / f'{reports[0].site}.png'}{more}"


def _data_prepare(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from fedsm.data.prepare import SOURCES, describe_sources, prepare

    if args.list:
        print(describe_sources())
        return 0
    if args.out is None:
        raise UserError("SOURCE, RAW and OUT are needed; `fedsm data prepare --list` shows the sources")
    with tqdm(desc=f"preparing {args.source}", unit="case") as bar:
        count = prepare(args.source, args.raw, args.out, args.readers, bar.update)
    print(f"{count} pairs in {args.out / SOURCES[args.source].site}")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("fedsm", description=__doc__, formatter_class=raw)
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
    run.add_argument("--force", action="store_true", help="replace the run that --out holds")
    add_job_options(run)
    run.set_defaults(do=_run)

    job = commands.add_parser("job", help="job folders for `nvflare`").add_subparsers(dest="verb", required=True)
    export = job.add_parser(
        "export", help="write a job folder", formatter_class=raw,
        epilog="example:\n  fedsm job export --task retinal --rounds 20 --out jobs\n",
        description="Writes the folder that `nvflare simulator` and `nvflare job submit -j` take.",
    )  # fmt: skip
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the job folder is put")
    export.add_argument("--name", help="the job's name (default: <method>_<task>)")
    export.add_argument(
        "--resume-from", default="", metavar="DIR", help="checkpoints folder on the server to go on from"
    )
    export.add_argument("--byoc", action="store_true", help="carry the code inside the job")
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

    data = commands.add_parser("data", help="data of sites").add_subparsers(dest="verb", required=True)
    synth = data.add_parser(
        "synth", help="draw synthetic fundus sites", formatter_class=raw,
        epilog="example:\n  fedsm data synth demo_data --sites 6 --seed 0\n",
        description="Draws fundus-like pictures of hospitals that differ as much as the paper's.",
    )  # fmt: skip
    synth.add_argument("out", type=Path, metavar="OUT", help="the data root to write")
    synth.add_argument("--sites", type=int, default=6, help="number of sites (default: 6)")
    synth.add_argument("--seed", type=int, default=0, help="(default: 0)")
    synth.add_argument("--images", type=int, default=40, help="images of a middle-sized site (default: 40)")
    synth.add_argument("--size", type=int, default=128, help="pixels each way (default: 128)")
    synth.add_argument("--force", action="store_true", help="write into a folder that is not empty")
    synth.set_defaults(do=_data_synth)

    prepare = data.add_parser(
        "prepare", help="make a site of a public data set's download", formatter_class=raw,
        epilog="example:\n  fedsm data prepare --list\n  fedsm data prepare refuge downloads/REFUGE data\n",
        description="From the layout of an official download to OUT/<site>/images and OUT/<site>/masks.",
    )  # fmt: skip
    prepare.add_argument("source", nargs="?", metavar="SOURCE", help="the data set's name (see --list)")
    prepare.add_argument("raw", nargs="?", type=Path, metavar="RAW", help="the unpacked download")
    prepare.add_argument("out", nargs="?", type=Path, metavar="OUT", help="the data root to write the site to")
    prepare.add_argument("--readers", choices=("majority", "first"), default="majority", help="(default: majority)")
    prepare.add_argument("--list", action="store_true", help="where to get each source, its terms and layout")
    prepare.set_defaults(do=_data_prepare)

    check = data.add_parser(
        "check", help="PASS, WARN or FAIL for each site, with remedies", formatter_class=raw,
        epilog="example:\n  fedsm data check data --task retinal\n",
        description="Reads every file of every site (or of one site's folder), and draws a contact sheet a site;"
        " exit code 1 when a site FAILs. `fedsm run` checks the same first.",
    )  # fmt: skip
    check.add_argument("root", type=Path, metavar="ROOT", help="folder with one sub-folder a site, or one site's")
    check.add_argument("--task", required=True, help=_task_help())
    sheets = check.add_mutually_exclusive_group()
    sheets.add_argument("--sheets", type=Path, metavar="DIR", help=f"where contact sheets go (default: {_SHEETS})")
    sheets.add_argument("--no-sheets", action="store_true", help="write no contact sheets")
    check.set_defaults(do=_data_check)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = build_parser().parse_args(argv)
    try:
        return args.do(args)
    except UserError as e:
        print(f"fedsm: error: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `fedsm ... | head`
        sys.stderr.close()
        return 0
    except OSError as e:
        print(f"fedsm: error: {e.filename or ''}: {e.strerror or e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
