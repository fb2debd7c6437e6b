"""`fedsm data`: draw synthetic sites, prepare public data sets, check what is there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from app_fedsm.cli import format_commands
from app_fedsm.cli.output import Result, add_format
from app_fedsm.cli.parser import complete_files
from app_fedsm.config.names import task_help
from fedsm.core.errors import UserError

if TYPE_CHECKING:
    from app_fedsm.cli.parser import Parser
    from fedsm.core.task_settings import TaskSettings
    from fedsm.data.findings import SiteReport

_SHEETS = "fedsm_check"  # in the current folder: nothing is written to a hospital's data folder


def _data_synth(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from fedsm.data.synthetic import write_sites

    for name, least in (("sites", 2), ("seed", 0), ("images", 1), ("size", 32)):
        if getattr(args, name) < least:
            raise UserError(f"--{name} must be at least {least}, got {getattr(args, name)}")
    if args.out.exists() and any(args.out.iterdir()) and not args.force:
        raise UserError(f"{args.out} is not empty", remedy="choose another folder or --force")
    with tqdm(desc="drawing", unit=" images", disable=None) as bar:
        names = write_sites(args.out, args.sites, args.seed, args.images, args.size, bar.update)
    print(f"{len(names)} sites in {args.out}: {', '.join(names)}")
    return 0


def _data_check(args: argparse.Namespace) -> Result:
    from app_fedsm.cli.check_documents import data_check
    from app_fedsm.config.build import build_settings
    from fedsm.data.check import check_with_bar
    from fedsm.data.findings import format_reports
    from fedsm.data.site_rules import SiteRules

    task = build_settings(args.task, "fedsm").task
    reports = check_with_bar(args.root, task, SiteRules(patient_pattern=args.patient_pattern))
    print(format_reports(reports))
    sheets = {} if args.no_sheets else _write_sheets(args.root, reports, task, args.sheets)
    data = data_check(args.root, args.task, reports, sheets)
    return Result(int(data.level == "FAIL"), data)


def _write_sheets(root: Path, reports: list[SiteReport], task: TaskSettings, asked: Path | None) -> dict[str, Path]:
    """Contact sheets where they were asked for, or in the current folder; prints where they are."""
    from tqdm import tqdm

    from fedsm.data.contact_sheet import write_contact_sheet

    out = asked or Path(_SHEETS)
    if asked is None and root.resolve() in (out.resolve(), *out.resolve().parents):
        print(f"no contact sheets: {out.resolve()} lies among the data; name a folder with --sheets DIR")
        return {}
    sheets = {}
    try:
        for report in tqdm(reports, desc="contact sheets", unit="site", leave=False, delay=1, disable=None):
            site = report.site
            folder = root / site if (root / site).is_dir() else root  # ROOT may be one site
            write_contact_sheet(folder, site, task, out / f"{site}.png", noted=report.noted)
            sheets[site] = out / f"{site}.png"
    except UserError as e:
        if asked:
            raise
        print(f"no contact sheets: {e}, or --no-sheets")  # the check itself is done: its exit code stands
        return sheets
    more = f" and {len(reports) - 1} more there" if reports[1:] else ""
    print(f"contact sheets, images of patients: {out / f'{reports[0].site}.png'}{more}")
    return sheets


def _data_prepare(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from fedsm.data.prepare import SOURCES, describe_sources, prepare

    if args.list:
        print(describe_sources())
        return 0
    if args.out is None:
        raise UserError("SOURCE, RAW and OUT are needed", remedy="`fedsm data prepare --list` shows the sources")
    with tqdm(desc=f"preparing {args.source}", unit=" cases", disable=None) as bar:
        count = prepare(args.source, args.raw, args.out, args.readers, bar.update)
    print(f"{count} pairs in {args.out / SOURCES[args.source].site}")
    return 0


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Adds the commands to `fedsm`'s."""
    data = commands.add_parser(
        "data", help="data of sites",
        epilog="example:\n  fedsm data synth demo_data\n  fedsm data check demo_data --task retinal\n",
    ).add_commands()  # fmt: skip
    synth = data.add_parser(
        "synth", help="draw synthetic fundus sites",
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
        "prepare", help="make a site of a public data set's download",
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
        "check", help="PASS, WARN or FAIL for each site, with remedies",
        epilog="example:\n  fedsm data check data --task retinal\n",
        description="Reads every file of every site (or of one site's folder), and draws a contact sheet per site;"
        " exit code 1 when a site FAILs. `fedsm run` checks the same first.",
    )  # fmt: skip
    check.add_argument("root", type=Path, metavar="ROOT", help="folder with one sub-folder per site, or one site's")
    check.add_argument("--task", required=True, help=task_help())
    check.add_argument(
        "--patient-pattern",
        metavar="REGEX",
        help="the patient in a file's name, as in fedsm_site.yaml; '': each file is a patient (default: of a"
        " folder with several sites the task's)",
    )
    sheets = check.add_mutually_exclusive_group()
    sheets_out = sheets.add_argument(
        "--sheets", type=Path, metavar="DIR", help=f"where contact sheets go (default: {_SHEETS})"
    )
    complete_files(sheets_out)
    sheets.add_argument("--no-sheets", action="store_true", help="write no contact sheets")
    add_format(check)
    check.set_defaults(do=_data_check)
    format_commands.add_parsers(data)
